"""What became of the gradients that a script was given.

An averaged gradient lies in ``p.grad``, and belongs to the script. It may be used by an optimiser, be clipped before,
have the next one added to it, be thrown away, or be forgotten. What a link remembers is right only for gradients that
were used, so this module looks: before each backward pass, and around each step.

A look costs no pass over numbers where nobody has touched a gradient: torch counts what is written to a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

Mark = tuple[int, int]  # where a gradient lies, and how often it was written to


class Given:
    """The gradients of some parameters, by the parameters' numbers.

    ``waiting`` are those that were averaged and not used yet, ``spent`` those that an optimiser has used. ``last`` has
    what was averaged last for each.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], last: Sequence[Tensor]) -> None:
        self.parameters, self.last = list(parameters), list(last)
        self.waiting: set[int] = set()
        self.spent: set[int] = set()
        self.marks: dict[int, Mark] = {}

    def give(self, numbers: Iterable[int]) -> None:
        """These were averaged just now."""
        self.waiting |= set(numbers)
        self.spent -= self.waiting

    def use(self, numbers: Iterable[int]) -> None:
        """An optimiser has used these."""
        self.waiting -= set(numbers)
        self.spent |= set(numbers)

    def drop(self, numbers: Iterable[int]) -> None:
        """These were thrown away, or cleared after use."""
        self.waiting -= set(numbers)
        self.spent -= set(numbers)

    def mark(self) -> None:
        """A backward pass has ended: from now on it is the script that writes to gradients."""
        self.marks.clear()
        for number in self.waiting | self.spent:
            grad = self.parameters[number].grad
            if grad is not None:
                self.marks[number] = (grad.data_ptr(), grad._version)

    def there(self, numbers: Iterable[int]) -> set[int]:
        """Those of ``numbers`` whose gradient is still there: neither None nor set to zero since it was given.

        One that was zero from the beginning, and was written to, is as the others that were written to: clipped with
        them, or set to zero with them.
        """
        intact, touched = set[int](), dict[int, Tensor]()
        for number in numbers:
            grad = self.parameters[number].grad
            if grad is None:
                continue
            if self.marks.get(number) == (grad.data_ptr(), grad._version) or not grad.numel():
                intact.add(number)
            else:
                touched[number] = grad.detach()
        if touched:
            sizes = torch._foreach_norm(list(touched.values()), torch.inf)
            largest = torch.stack([size.to(sizes[0].device, torch.float64) for size in sizes]).tolist()
            alive = {number for number, size in zip(touched, largest, strict=True) if size != 0}
            intact |= alive
            if alive:
                intact |= {number for number in touched.keys() - alive if not self.last[number].any()}
        return intact
