"""Brain: the Extension. It hides what is asleep and puts principles before their cases."""
from __future__ import annotations

from collections.abc import Collection

from hermes_ext.brain.note import ASLEEP, CONCEPT
from hermes_ext.brain.settings import Settings, read_settings
from hermes_lite import ConfigError, HermesLite

__all__ = ["Brain", "find", "system"]


class Brain:
    """What takes part in every write and read."""
    name = "brain"

    def __init__(self, memory: HermesLite, settings: Settings) -> None:
        self.memory, self.settings = memory, settings

    def hidden(self) -> Collection[str]:
        """Return the ids of what is asleep, and of the records that define concepts."""
        search = self.memory.store.search
        return [*search.tagged((ASLEEP,)), *search.tagged((CONCEPT,))]


def find(memory: HermesLite) -> Brain:
    """Return the system that is switched on; ConfigError when it is not."""
    found = next((each for each in memory.systems if isinstance(each, Brain)), None)
    if found is None:
        raise ConfigError("the brain is not switched on; put systems: {brain: {}} in config.yaml "
                          "(`config path` says where it is)")
    return found


def system(memory: HermesLite, *, decay: float = 0.05, boost: float = 0.01,
           asleep_below: float = 0.15, unused_days: int = 30, orders: int = 3,
           principles: int = 1) -> Brain:
    """Make the Extension; the arguments are its settings in config.yaml."""
    return Brain(memory, read_settings(decay=decay, boost=boost, asleep_below=asleep_below,
                                       unused_days=unused_days, orders=orders,
                                       principles=principles))
