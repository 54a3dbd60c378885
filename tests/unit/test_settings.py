"""Settings: whatever a file or a variable holds, it is read or told in one line, and no secret is shown."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chunking.errors import UsageError
from pipeline.settings import CONFIG, PREFIX, Settings
from workers.wiring import read_settings

VALUES = st.text(max_size=20) | st.integers() | st.floats() | st.booleans() | st.just([1, "two"]) | st.just({"a": 1})
NAMED = st.dictionaries(st.sampled_from([*Settings.model_fields, "modle"]), VALUES, max_size=4)


def toml(values: dict[str, object]) -> bytes:
    return "".join(f"{k} = {v!r}\n" for k, v in values.items()).encode(errors="replace")


def told() -> str | None:
    """What is said against the settings."""
    try:
        read_settings()
    except UsageError as e:
        return str(e)
    return None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | NAMED.map(toml))
@example(b"\xff\xfe")
@example(b"home = '~nobody-of-that-name/x'")
def test_any_file_is_read_or_told_in_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("settings") / "spotscribe.toml"
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG, str(file))
        assert told() != ""


@given(
    st.sampled_from(sorted(Settings.model_fields)),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30),
)
def test_any_variable_is_read_or_named(name: str, value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"{PREFIX}{name.upper()}", value)
        assert name.upper() in (told() or name.upper())


def test_no_secret_is_shown() -> None:
    made = Settings(
        database_url="postgresql://me:hunter2@host/db", broker_url="redis://:hunter2@host", events_token="hunter2",
        webhook_secret="hunter2",
    )  # fmt: skip
    assert "hunter2" not in repr(made) + str(made)
