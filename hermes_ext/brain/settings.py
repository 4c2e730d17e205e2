"""The settings of the brain under `systems: {brain: …}` in config.yaml."""
from __future__ import annotations

from dataclasses import dataclass, fields

from hermes_lite import ConfigError, Record

__all__ = ["Settings", "read_settings"]


@dataclass(frozen=True, slots=True)
class Settings(Record):
    """What config.yaml says; rates are per day, strengths lie between 0 and 1."""
    decay: float = 0.05            # strength lost a day
    boost: float = 0.01            # strength gained by a use
    asleep_below: float = 0.15     # weaker than this, and unused for so many days: falls asleep
    unused_days: int = 30
    orders: int = 3                # work orders written in one cycle
    principles: int = 1            # patterns or principles that one `cycle --llm` adds


_RANGES = {"decay": (0, 1), "boost": (0, 1), "asleep_below": (0, 1), "unused_days": (0, 36_500),
           "orders": (0, 100), "principles": (0, 100)}


def read_settings(**given: object) -> Settings:
    """Return the settings with what config.yaml gives; ConfigError for what cannot be right."""
    kinds = {each.name: type(each.default) for each in fields(Settings)}
    for name, value in given.items():
        least, most = _RANGES[name]
        allowed = (int,) if kinds[name] is int else (int, float)
        if type(value) not in allowed or not least <= value <= most:       # type: ignore[operator]
            number = "whole number" if kinds[name] is int else "number"
            raise ConfigError(f"systems.brain.{name} is {value!r}; give a {number} from {least} "
                              f"to {most}")
    return Settings(**given)                                               # type: ignore[arg-type]
