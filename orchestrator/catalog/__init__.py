"""Storage catalogues as data; ``cli`` reads them. One YAML file for each kind of storage, priced at its ``price_date``."""

from __future__ import annotations

from pathlib import Path

DEFAULT = Path(__file__).with_name("fsx-lustre-persistent-2.yaml")
