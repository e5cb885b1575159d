"""The steps run only when they are asked for, so that plain pytest is green. They end with a line for each step."""

from pathlib import Path


def is_asked_for(config):
    return any(Path(arg.split("::")[0]).absolute().is_relative_to(Path(__file__).parent) for arg in config.args)


def pytest_ignore_collect(config):
    return not is_asked_for(config)


def pytest_configure(config):
    if is_asked_for(config):
        config.option.tbstyle = "no"  # no tracebacks, and no summary that repeats the lines below
        config.option.reportchars = ""


def pytest_terminal_summary(terminalreporter, config):
    if not is_asked_for(config):
        return
    for report in sorted([*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")],
                         key=lambda report: report.nodeid):
        step = report.nodeid.split("::")[-1].removeprefix("test_")
        if report.passed:
            learned = " ".join(text for _, text in report.user_properties)
            terminalreporter.write_line(f"{step}: done. {learned}", green=True)
        else:
            said = report.longrepr.reprcrash.message.splitlines()[0].removeprefix("AssertionError: ")
            terminalreporter.write_line(f"{step}: {said}", red=True)
