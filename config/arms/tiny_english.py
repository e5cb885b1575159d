"""
The arms of config/arms/tiny.py on English, in place of code: any text of about 2 MB and more, prepared with

    python data/text/prepare.py FILE... --out_dir=data/text/bytes
"""
from config.arms.tiny import arms, base, seeds

arms = {name: dict(changes, data_dir="data/text/bytes") for name, changes in arms.items()}
