"""The verdicts of `make soak`: growth is detected, noise and warm-up are not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .soak import ALLOWANCES, MIB, Series, judge, soak


def _growing_series(value: float, per_second: float, noise: float = 0.0, warm_up: float = 0.0) -> Series:
    chance, seen = random.Random(1), Series()
    for at in range(0, 600, 2):
        warming = warm_up * max(0.0, 1 - at / 120)
        seen.add(at, value - warming + per_second * at + noise * chance.uniform(-1, 1))
    return seen


@pytest.mark.parametrize("name", ALLOWANCES)
def test_soak_judge_detects_growth(name: str) -> None:
    allowed = judge(name, _growing_series(100 * MIB, 0.0), 180).allowed
    verdict = judge(name, _growing_series(100 * MIB, 2 * allowed / 420, noise=allowed), 180)
    assert not verdict.is_flat
    assert "GROWS" in str(verdict)


@pytest.mark.parametrize("name", ALLOWANCES)
def test_soak_judge_ignores_noise_and_warm_up(name: str) -> None:
    allowed = judge(name, _growing_series(100 * MIB, 0.0), 180).allowed
    assert judge(name, _growing_series(100 * MIB, 0.0, noise=allowed, warm_up=50 * MIB), 180).is_flat


def test_soak_judge_ignores_outliers() -> None:
    seen = _growing_series(MIB, 0.0)
    seen.values[-5:] = [200 * MIB] * 5
    assert judge("log of the file", seen, 180).is_flat


def test_soak_verdict_shows_values_over_time() -> None:
    verdict = judge("threads", Series([*map(float, range(9))], [*map(float, range(9))]), 0)
    assert verdict.course == [0, 2, 4, 6, 8]
    assert "0.0 → 2.0 → 4.0 → 6.0 → 8.0" in str(verdict)


def test_soak_judge_rejects_too_few_samples() -> None:
    with pytest.raises(ValueError, match="was seen 2 times only"):
        judge("memory", Series([0.0, 1.0], [1.0, 1.0]), 0)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_short_soak_run_reports_all_measures_without_errors(tmp_path: Path) -> None:
    path = tmp_path / "soak.db"
    report = soak(0.03, f"local:{path}", path, tmp_path, every=0.1)
    assert not report.errors
    assert {verdict.name for verdict in report.verdicts} == set(ALLOWANCES)
    assert all(verdict.middle > 0 for verdict in report.verdicts if verdict.name != "log of the file")
