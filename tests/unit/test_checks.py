"""What is refused before anything is submitted, each with one clear sentence and a remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.control.checks import (
    check_fits,
    check_repository_path,
    check_room,
    check_script,
    check_tag,
    options_without_effect,
    out_of_service,
    run_validate,
)
from orchestrator.errors import OrchError, Refused, StorageError, UserError
from orchestrator.model import TAG_PATTERN, Profile
from orchestrator.slurm.protocol import NodeOffer


@pytest.mark.parametrize("tag", ["a", "A1", "resnet-50_v1.2", "0", "x" * 64])
def test_tags(tag: str) -> None:
    check_tag(tag)


@pytest.mark.parametrize(("tag", "better"), [
    ("a/b", "a-b"), ("../a", "a"), ("a b", "a-b"), ("-x", "x"), ("--help", "help"), (".hidden", "hidden"), ("", ""),
    ("modèle", "mod-le"), ("a\nb", "a-b"), ("a:b", "a-b"), ("x" * 65, "x" * 64), ("a@b", "a-b"), ("训练", ""),
    ("a\n", "a"), ("%j", "j")])
def test_no_tags(tag: str, better: str) -> None:
    with pytest.raises(UserError, match="cannot be a tag") as caught:
        check_tag(tag)
    assert caught.value.exit_code == 2
    assert caught.value.hint == (f'write for example "{better}"' if better else "")


@given(st.text(max_size=80))
def test_what_is_proposed_is_a_tag(tag: str) -> None:
    try:
        check_tag(tag)
    except UserError as error:
        assert not error.hint or TAG_PATTERN.fullmatch(error.hint.split('"')[1])


# --- job.sh --------------------------------------------------------------------------------------------------------------


def script(tmp_path: Path, content: str | bytes, mode: int = 0o755) -> Path:
    path = tmp_path / "job.sh"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [
    "#!/bin/bash\npython train.py\n", "#!/usr/bin/env bash\nset -e\nexec python train.py --lr 1e-3 |& tee log\n",
    "#!/usr/bin/env python3\nimport train\n", "#!/bin/sh -e\n./train", "#!/usr/bin/env bash\nX=1 python train.py\n",
    "#!/bin/bash\nfor i in 1 2; do\n  python train.py $i\ndone\n", b"#!/bin/bash\necho caf\xe9\n",
    "#!/bin/bash\nsrun python a.py\n",
    "#!/usr/bin/env fish\nif true; echo; end\n"])
def test_scripts(tmp_path: Path, content: str | bytes) -> None:
    check_script(script(tmp_path, content))


@pytest.mark.parametrize(("content", "mode", "problem", "hint"), [
    ("#!/bin/bash\r\npython train.py\r\n", 0o755, "job.sh:1: has Windows line ends (CRLF)", r"sed -i 's/\r$//'"),
    ("#!/bin/bash\npython train.py\r\n", 0o755, "job.sh:2: has Windows line ends (CRLF)", "sed -i"),
    ("python train.py\n", 0o755, "job.sh:1: does not begin with #!", "#!/usr/bin/env bash"),
    ("\n#!/bin/bash\nls\n", 0o755, "job.sh:1: does not begin with #!", "#!/usr/bin/env bash"),
    ("\ufeff#!/bin/bash\nls\n", 0o755, "job.sh:1: does not begin with #!", "#!/usr/bin/env bash"),
    ("", 0o755, "job.sh:1: does not begin with #!", "#!/usr/bin/env bash"),
    ("#!/bin/bash\npython train.py\n", 0o644, "is not executable", "chmod +x"),
    ("#!/bin/bash\nif true; then\n", 0o755, "bash cannot parse it", ""),
    ('#!/bin/bash\necho "open\n', 0o755, "bash cannot parse it", ""),
    ("#!/bin/bash\n", 0o755, "has no command in it", "last line"),
    ("#!/usr/bin/env bash\n# python train.py\nset -euo pipefail\n\nexport A=1\n", 0o755, "has no command in it", "last line"),
])
def test_no_scripts(tmp_path: Path, content: str, mode: int, problem: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        check_script(script(tmp_path, content, mode))
    assert problem in caught.value.message and hint in caught.value.hint and caught.value.exit_code == 2


def test_no_script_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist") as caught:
        check_script(tmp_path / "job.sh")
    assert "chmod +x" in caught.value.hint, "`orch new` would refuse a folder that is there"
    (tmp_path / "job.sh").mkdir()
    with pytest.raises(UserError, match="does not exist"):
        check_script(tmp_path / "job.sh")


def test_a_job_sh_that_was_an_sbatch_script_is_told_so(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/bash\n\n#SBATCH --gres=gpu:1\n#SBATCH --signal=USR1@90\npython train.py\n")
    check_script(path)
    assert options_without_effect(path, "gpu").endswith(
        'job.sh:3: #SBATCH lines have no effect here; what Slurm is asked for stands in profile "gpu" of orch.yaml')
    assert options_without_effect(script(tmp_path, "#!/bin/bash\n# SBATCH is written by orch\npython a.py\n"), "gpu") == ""


def test_the_template_has_no_command_yet(tmp_path: Path) -> None:
    from orchestrator.control.scaffold import JOB_SH

    with pytest.raises(UserError, match="has no command in it"):
        check_script(script(tmp_path, JOB_SH))


def test_nodes_out_of_service() -> None:
    def node(name: str, state: str, reason: str = "") -> NodeOffer:
        return NodeOffer(node=name, partition="main", default=True, cpus=1, memory_bytes=1, gres="", state=state,
                         time_limit_s=None, reason=reason)

    assert out_of_service([node("n1", "idle"), node("n2", "mixed")]) == ""
    assert out_of_service([node(f"n{number}", "drained", "bad disk") for number in range(6)] + [
        node("n0", "drained", "bad disk"), node("n7", "down*"), node("n8", "idle*")]) == (
        "n0, n1, n2, n3 and 2 more (drained: bad disk); n7 (down*); n8 (idle*)")


# --- validate, room, path ---------------------------------------------------------------------------------------------------


def test_validate_runs_in_the_repository_and_its_words_are_shown(tmp_path: Path) -> None:
    run_validate("test -d .", tmp_path)
    (tmp_path / "here").touch()
    run_validate("test -f here", tmp_path)
    with pytest.raises(Refused) as caught:
        run_validate("seq 9; echo train.py: unrecognised --lrr >&2; exit 3", tmp_path)
    assert "ended with 3" in caught.value.message and "unrecognised --lrr" in caught.value.message
    assert "\n  5" not in caught.value.message and caught.value.exit_code == 4
    with pytest.raises(Refused, match="ended with 127"):
        run_validate("no-such-command-anywhere", tmp_path)


def test_room(tmp_path: Path) -> None:
    check_room(tmp_path, 0)
    with pytest.raises(StorageError, match="free, and the checkpoints kept need") as caught:
        check_room(tmp_path, shutil.disk_usage(tmp_path).total + 1)
    assert caught.value.exit_code == 7 and "keep" in caught.value.hint


def test_a_newline_in_the_repositorys_path(tmp_path: Path) -> None:
    check_repository_path(tmp_path / "a 'b' $c")
    with pytest.raises(UserError, match="holds a newline"):
        check_repository_path(Path("/a\nb"))


# --- what the nodes offer --------------------------------------------------------------------------------------------------


def offer(node: str = "n1", partition: str = "main", **context: object) -> NodeOffer:
    values: dict[str, object] = {"default": partition == "main", "cpus": 8, "memory_bytes": 4000 * 2**20,
                                 "gres": "gpu:a100:2(S:0)", "state": "idle", "time_limit_s": 86400.0}
    return NodeOffer(node=node, partition=partition, **{**values, **context})  # type: ignore[arg-type]


OFFERS = [offer(), offer("n2", gres=""), offer(partition="long", time_limit_s=None), offer("big", "fat", memory_bytes=2**40)]
GIB = 2**30


@pytest.mark.parametrize("profile", [
    Profile(name="p"), Profile(name="p", gres="gpu:2"), Profile(name="p", cpus=8, memory_bytes=3 * GIB),
    Profile(name="p", time_s=86400), Profile(name="p", partition="long", time_s=30 * 86400),
    Profile(name="p", partition="main,fat", memory_bytes=900 * GIB)])
def test_what_fits(profile: Profile) -> None:
    check_fits(profile, OFFERS)


@pytest.mark.parametrize(("profile", "words"), [
    (Profile(name="p", partition="mian"), 'this Slurm has no partition "mian"'),
    (Profile(name="p", time_s=86401), "time 1-0:01:00 is above the limit of partition main (1-0:00:00)"),
    (Profile(name="p", gres="gpu:3"), "gpu:3 asked for, n1 has 2"),
    (Profile(name="p", gres="tpu"), "tpu:1 asked for, n1 has 0"),
    (Profile(name="p", cpus=9), "9 cpus asked for, n1 has 8"),
    (Profile(name="p", memory_bytes=5 * GIB), "5G memory asked for, n1 has 3.9G"),
    (Profile(name="p", partition="fat", gres="gpu:4", memory_bytes=GIB), "gpu:4 asked for, big has 2"),
])
def test_what_does_not(profile: Profile, words: str) -> None:
    with pytest.raises(Refused) as caught:
        check_fits(profile, OFFERS)
    assert words in caught.value.message and 'profile "p"' in caught.value.message
    assert caught.value.hint and caught.value.exit_code == 4


def test_each_lack_is_named() -> None:
    with pytest.raises(Refused, match=r"9 cpus asked for.*; 5G memory asked for.*; gpu:3 asked for"):
        check_fits(Profile(name="p", cpus=9, memory_bytes=5 * GIB, gres="gpu:3"), [offer()])


def test_more_nodes_than_there_are() -> None:
    with pytest.raises(Refused, match="5 nodes asked for, 2 of partition main can hold"):
        check_fits(Profile(name="p", nodes=5), OFFERS)
    with pytest.raises(Refused, match="2 nodes asked for, 1 of partition main can hold"):
        check_fits(Profile(name="p", nodes=2, gres="gpu:1"), OFFERS)
    check_fits(Profile(name="p", nodes=2), OFFERS)


def test_all_these_are_errors_of_orch() -> None:
    assert all(issubclass(kind, OrchError) for kind in (Refused, StorageError, UserError))
