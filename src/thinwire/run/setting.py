"""What a run is asked for beside its method and its problem: frozen, and its fields are keyword arguments too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, TypeVar

from ..config import Config, fit
from ..errors import nearest, require
from ..ranges import Beginning, of_argument

Self = TypeVar("Self", bound=Config)


class BaseSetting(Config):
    """The setting of a kind of training. A refusal names a field as the argument that it is."""

    refusal: ClassVar[Beginning] = staticmethod(of_argument)

    def but(self: Self, changed: Mapping[str, Any]) -> Self:
        """The same setting with other values of some fields.

        Raises ``TypeError`` for a name that no field has, and ``ValueError`` for a value that none may have.
        """
        cls = type(self)
        known = [field.name for field in fields(self)]  # type: ignore[arg-type]  # a dataclass
        for name in changed:
            if name not in known:
                near, names = nearest(name, known), ", ".join(known)
                raise TypeError(f"a run has no setting {name!r}{near}; the fields of {cls.__name__} are {names}")
        return replace(self, **fit(cls, changed)) if changed else self  # type: ignore[type-var]

    @classmethod
    def of(cls: type[Self], setting: Any, changed: Mapping[str, Any]) -> Self:
        """A setting that was given, with other values of some fields. Raises ``ValueError`` for what is none."""
        require(isinstance(setting, cls), f"setting={setting!r}: give a {cls.__name__}, such as {cls.example}")
        made: Self = setting.but(changed)
        return made
