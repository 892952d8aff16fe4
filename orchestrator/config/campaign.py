"""``jobs/NAME.campaign.yaml``: runs that are submitted together, and what each waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.after import Awaited, parse_after
from orchestrator.config.document import Document
from orchestrator.config.keys import CampaignFile
from orchestrator.errors import ConfigError
from orchestrator.model import TAG_PATTERN

CAMPAIGN_SUFFIX = ".campaign.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run of a campaign; what is not said here is said by its job.yaml."""

    profile: str | None = None
    after: tuple[Awaited, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan:
    """The file, as far as it can be checked by itself."""

    name: str
    parts: Mapping[str, Part]
    document: Document

    def error(self, tag: str, problem: str, remedy: str = "", key: str = "") -> ConfigError:
        """A complaint about one part of it, with file and line."""
        return self.document.error(f"runs.{tag}{key}", problem, remedy)


def campaign_path(repository: Path, name: str) -> Path:
    return repository / "jobs" / f"{name}{CAMPAIGN_SUFFIX}"


def campaign_names(repository: Path) -> list[str]:
    """Campaigns that have a file, by name."""
    return sorted(path.name.removesuffix(CAMPAIGN_SUFFIX) for path in (repository / "jobs").glob(f"*{CAMPAIGN_SUFFIX}"))


def load_campaign(repository: Path, name: str) -> CampaignPlan:
    """Raises ConfigError naming file, line, key and remedy."""
    document = Document(campaign_path(repository, name))
    file = document.convert(CampaignFile)
    if not file.runs:
        raise document.error("runs", "is empty", "write a line `TAG:` for each run")
    if (repository / "jobs" / name).is_dir():
        raise document.error("runs", f"jobs/{name} is a job folder, and this campaign is called by that name too",
                             f"call the file otherwise, for example jobs/{name}s{CAMPAIGN_SUFFIX}")
    parts = {}
    for tag, part in file.runs.items():
        if not TAG_PATTERN.fullmatch(tag):
            raise document.error(f"runs.{tag}", f'"{tag}" cannot be a tag', "write the name of a folder in jobs/")
        parts[tag] = Part() if part is None else Part(
            profile=part.profile, after=parse_after(document, f"runs.{tag}.after", part.after))
    return CampaignPlan(name=name, parts=parts, document=document)
