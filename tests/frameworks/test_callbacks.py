"""What the callbacks do apart from trainings that are interrupted, which tests/slurm shows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def orch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Under orch, in a first attempt."""
    monkeypatch.setenv("ORCH_RUN_DIR", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.fixture(params=["hf", "lightning"])
def callback_class(request: Any) -> Any:
    pytest.importorskip({"hf": "transformers", "lightning": "lightning"}[request.param], exc_type=ImportError)
    module = __import__(f"orch_trainer.{request.param}", fromlist=["OrchCallback"])
    return module.OrchCallback


def test_there_is_nothing_to_resume_from_on_the_first_attempt(orch: Path, callback_class: Any) -> None:
    assert callback_class().resume_from is None


def test_outside_orch_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback_class: Any) -> None:
    monkeypatch.delenv("ORCH_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert callback_class().resume_from is None
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_from_before_the_callback_is_resumed_from(orch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    from orch_trainer.hf import OrchCallback

    before = orch / "checkpoints" / "checkpoint-500"
    before.mkdir()
    (before / "trainer_state.json").write_text('{"global_step": 500}')
    monkeypatch.setenv("ORCH_RESUME_FROM", str(before))
    assert OrchCallback().resume_from == str(before)


def test_what_cannot_be_kept_is_refused_in_a_sentence(orch: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    from orch_trainer.hf import OrchCallback

    with pytest.raises(ValueError, match="load_best_model_at_end=True: under OrchCallback checkpoints are saved when"):
        OrchCallback().on_train_begin(SimpleNamespace(load_best_model_at_end=True), SimpleNamespace(), None)


def test_lightnings_own_requeue_is_turned_off(orch: Path) -> None:
    pytest.importorskip("lightning", exc_type=ImportError)
    from lightning.fabric.plugins.environments import SLURMEnvironment

    from orch_trainer.lightning import OrchCallback

    environment = SLURMEnvironment(auto_requeue=True)
    trainer = SimpleNamespace(_accelerator_connector=SimpleNamespace(cluster_environment=environment))
    OrchCallback().setup(trainer, None, "fit")
    assert environment.auto_requeue is False
