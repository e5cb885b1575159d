"""The steps run only when they are asked for, so that plain pytest is green. At the end it says what was learned."""

from pathlib import Path


def pytest_ignore_collect(config):
    return not any(Path(arg.split("::")[0]).absolute().is_relative_to(Path(__file__).parent) for arg in config.args)


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed"):
        for _, learned in report.user_properties:
            terminalreporter.write_line(f"\n{report.nodeid.split('::')[1]}: {learned}", green=True)
