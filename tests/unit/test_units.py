import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.units import (
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
    slurm_memory_mib,
    slurm_minutes,
)


@pytest.mark.parametrize(("text", "seconds"), [
    ("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800), ("00:20:00", 1200), ("12:30:00", 45000),
    ("1-12:00:00", 129600), ("250ms", 0.25), (" 5 m ", 300), ("1w", 604800),
])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(("text", "advice"), [
    ("30", "30s, 30m or 30h"), ("20 mins", "write 90s"), ("", "write 90s"), ("-5m", "write 90s"), ("5m 3", "write 90s"),
    ("1h:30", "write 90s"), ("12:30", "write 90s"),
])
def test_what_is_no_duration_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        parse_duration_s(text)


@pytest.mark.parametrize(("text", "size"), [
    ("36G", 36 * 2**30), ("512M", 512 * 2**20), ("1.5T", int(1.5 * 2**40)), ("36GB", 36 * 2**30), ("36GiB", 36 * 2**30),
    ("100B", 100), ("4k", 4096),
])
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize(("text", "advice"), [("36", "36M or 36G"), ("lots", "write 512M"), ("-3G", "write 512M")])
def test_what_is_no_size_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        parse_size_bytes(text)


@given(st.integers(10, 10**7))
def test_a_formatted_duration_is_near_what_it_was(seconds: int) -> None:
    assert abs(parse_duration_s(format_duration(seconds)) - seconds) <= seconds * 0.05


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0s"), (0.42, "0.4s"), (59.6, "1m"), (125, "2m05s"), (3720, "1h02m"), (7200, "2h"), (273600, "3d04h"), (-5, "-5s")])
def test_formatted_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 2**60))
def test_a_formatted_size_is_near_what_it_was(size: int) -> None:
    assert abs(parse_size_bytes(format_size(size)) - size) <= max(1, size * 0.05)


def test_slurm_counts_up() -> None:
    assert [slurm_minutes(s) for s in (1, 60, 61, 3600)] == [1, 1, 2, 60]
    assert slurm_memory_mib(36 * 2**30) == 36864
    assert slurm_memory_mib(1) == 1
