"""Tells other DAGs of an epoch, by the assets of its sinks. How other DAGs name these assets stops no epoch.

In Airflow, one asset is active of those with the same URI or the same name. A task with an inactive asset among its
outlets fails before its first line: so a DAG of somebody else, ``schedule=[Asset(name="silver", uri=...)]``, would keep
every epoch from being completed. What is announced is the sink's URI. So the event goes to the asset that has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from airflow_epochs import secrecy
from airflow_epochs.operators.base import EpochOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from typing_extensions import Self

    from airflow_epochs.coordinator.coordinator import Coordinator
    from airflow_epochs.model import Checkpoint, JsonDict

log = secrecy.logger(__name__)


class AnnouncesSinks(EpochOperator):
    """An operator that has an asset for each sink among its outlets."""

    assets: dict[str, Asset]
    _declared: tuple[list[Any], list[Any]] | None = None

    def prepare_for_execution(self) -> Self:
        """Called by Airflow, which then asks if all inlets and outlets are active.

        The operator has none until it executes. Airflow emits events for the outlets that it has at its end.
        """
        other = super().prepare_for_execution()
        if other._declared is None:
            other._declared = (self.inlets, self.outlets)
        other.inlets, other.outlets = [], []
        return other

    def _told(self, context: Context) -> JsonDict:
        if self._declared:
            self.inlets, self.outlets = self._declared
        return super()._told(context)

    def announce(self, coordinator: Coordinator, context: Context, done: Checkpoint, first: int | None = None) -> None:
        """Let the asset events carry the newest complete epoch. ``done``, ``first``: see ``phases.tell_of_newest``."""
        from airflow_epochs.operators import phases

        self.outlets = [_active(each, context) if isinstance(each, Asset) else each for each in self.outlets]
        by_uri = {each.uri: each for each in self.outlets if isinstance(each, Asset)}
        assets = {sink: by_uri.get(asset.uri, asset) for sink, asset in self.assets.items()}
        phases.tell_of_newest(coordinator, assets, context, done, first)


def _active(asset: Asset, context: Context) -> Asset:
    """The asset with this URI that is active. It has another name if another DAG came first."""
    try:
        found = context["outlet_events"][Asset.ref(uri=asset.uri)].key
    except Exception as error:  # the epoch is complete, whatever comes of its announcement
        _tell_of_none(asset, error, mapped=context["ti"].map_index not in (None, -1))
        return asset
    if found.name == asset.name:
        return asset
    log.warning(
        "another DAG names the asset with the URI %r %r, not %r. The asset event goes to that asset. Airflow starts no "
        "DAG that waits for it by the other name, and warns of this on the DAG's page. Let all DAGs name it alike: "
        "`Asset(%r)`, without a name.",
        asset.uri,
        found.name,
        asset.name,
        asset.uri,
    )
    return Asset(name=found.name, uri=asset.uri)


def _tell_of_none(asset: Asset, error: Exception, *, mapped: bool) -> None:
    if not isinstance(error, AirflowRuntimeError) or error.error.error is not ErrorType.ASSET_NOT_FOUND:
        log.warning("Airflow did not say by which name it knows the asset with the URI %r: %s", asset.uri, error)
    elif mapped:  # Airflow reads a DAG before it knows the outlets of the instances
        log.info(
            "no DAG waits for the asset with the URI %r, so this epoch has no event of it. Airflow learns of a mapped "
            "task's assets only from other DAGs: as soon as one has it in its `schedule`, there are events. If one has "
            "it there already, a warning on the page of that DAG in Airflow says which other asset has its name.",
            asset.uri,
        )
    else:
        log.warning(
            "Airflow has no active asset with the URI %r. Its event of this epoch starts no DAG. Probably another DAG "
            "gives the name %r to an asset with another URI. A warning on this DAG's page in Airflow says which URI. "
            "Give that asset another name there.",
            asset.uri,
            asset.name,
        )
