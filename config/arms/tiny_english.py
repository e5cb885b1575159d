"""
The arms of config/arms/tiny.py on English instead of code. Any text of about 2 MB or more will do, prepared with

    python data/text/prepare.py FILE... --out_dir=data/text/bytes
"""
from config.arms.tiny import arms, base, seeds

arms = {name: dict(changes, data_dir="data/text/bytes") for name, changes in arms.items()}
