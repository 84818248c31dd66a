"""One optimizer step as a method sees it (`method.StepView`): under plain torch, and under ZeRO-1.

Under ZeRO-1 every process owns a slice of one flat FP32 copy of each parameter group and of its Adam
moments; `parameter._hp_mapping` says where a parameter's slice is, and is None where there is none of it.
All calls but `hold` are collective: every process makes the same calls in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn


class TorchStep:
    """A step of a plain torch optimizer in one process; call `restore` right after `optimizer.step()`."""

    def __init__(self, optimizer: torch.optim.Optimizer, step: int = 1, total_steps: int = 1) -> None:
        self.optimizer = optimizer
        self.step = step
        self.total_steps = total_steps
        self._held: list[tuple[nn.Parameter, torch.Tensor, dict[str, torch.Tensor]]] = []

    def grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return a copy of the accumulated gradient (valid before the optimizer's step only)."""
        return None if parameter.grad is None else parameter.grad.detach().clone()

    def set_grad(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Replace the accumulated gradient that clipping and the optimizer will see."""
        parameter.grad = value.detach().to(parameter.dtype).clone()

    def weight(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return a copy of the weight in FP32."""
        return parameter.detach().to(torch.float32, copy=True)

    def set_weight(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Write the weight."""
        parameter.data.copy_(value)

    def hold(self, parameters: list[nn.Parameter]) -> None:
        """Keep weights and Adam moments through this step; Adam's step count goes on."""
        for parameter in parameters:
            state = self.optimizer.state.get(parameter, {})
            moments = {key: value.clone() for key, value in state.items() if _is_moment(value, parameter)}
            self._held.append((parameter, parameter.detach().clone(), moments))

    @torch.no_grad()
    def restore(self) -> None:
        """Put back what is held; moments that did not exist before the step become zero."""
        for parameter, weight, moments in self._held:
            parameter.data.copy_(weight)
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if _is_moment(value, parameter):
                    value.copy_(moments[key]) if key in moments else value.zero_()
        self._held.clear()


class ZeroStep:
    """A step of a DeepSpeed ZeRO-1 engine; call `restore` right after `engine.step()`."""

    def __init__(self, engine: Any, step: int = 1, total_steps: int = 1) -> None:
        self.engine = engine
        self.step = step
        self.total_steps = total_steps
        self._held: list[tuple[nn.Parameter, torch.Tensor, dict[str | None, torch.Tensor]]] = []

    def grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return a copy of the whole gradient, averaged over processes (between backward and step only).

        A parameter that needs a gradient but is in no optimizer group (a frozen norm that a method scores)
        works too: its own gradient is averaged here.
        """
        from deepspeed.utils import safe_get_full_grad

        if hasattr(parameter, "_hp_mapping"):
            return safe_get_full_grad(parameter)
        if parameter.grad is None:
            return None
        mean = parameter.grad.detach().clone()
        distributed.all_reduce(mean)
        return mean / distributed.get_world_size()

    def set_grad(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Replace the gradient that clipping and the optimizer will see; the same value on every process."""
        mapping = parameter._hp_mapping
        if mapping is not None:
            fragment = mapping.get_lp_grad_fragment(parameter._index_in_param_group)
            address = mapping.lp_fragment_address
            part = value.detach().flatten().narrow(0, address.start, address.numel)
            fragment.copy_(part.reshape(fragment.shape))

    def weight(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return a copy of the whole FP32 master weight."""
        from deepspeed.utils import safe_get_full_fp32_param

        # An FP32 parameter is bit for bit its own master, and reading it costs no communication.
        if parameter.dtype == torch.float32 or not hasattr(parameter, "_hp_mapping"):
            return parameter.detach().to(torch.float32, copy=True)
        return safe_get_full_fp32_param(parameter)

    def set_weight(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Write the master and the forward's copy; the same value on every process."""
        from deepspeed.utils import safe_set_full_fp32_param

        safe_set_full_fp32_param(parameter, value.detach().to(torch.float32))
        parameter.data.copy_(value)

    def fragments(self, parameter: nn.Parameter) -> dict[str | None, torch.Tensor]:
        """Return this process's slices of a parameter's master (key None) and moments, as flat views."""
        mapping = parameter._hp_mapping
        if mapping is None:
            return {}
        # Not mapping.optim_fragment: DeepSpeed fills it once, when only the first group has a state.
        flat = self.engine.optimizer.single_partition_of_fp32_groups[mapping.param_group_index]
        address = mapping.hp_fragment_address
        state = self.engine.optimizer.optimizer.state.get(flat, {})
        moments = {key: value for key, value in state.items() if _is_moment(value, flat)}
        whole: dict[str | None, torch.Tensor] = {None: flat, **moments}
        return {key: value.detach().narrow(0, address.start, address.numel) for key, value in whole.items()}

    def hold(self, parameters: list[nn.Parameter]) -> None:
        """Keep weights and Adam moments through this step; Adam's step count goes on."""
        for parameter in parameters:
            own = {key: value.detach().clone() for key, value in self.fragments(parameter).items()}
            self._held.append((parameter, parameter.detach().clone(), own))

    @torch.no_grad()
    def restore(self) -> None:
        """Put back what is held; moments that did not exist before the step become zero."""
        for parameter, weight, own in self._held:
            parameter.data.copy_(weight)
            for key, value in self.fragments(parameter).items():
                value.copy_(own[key]) if key in own else value.zero_()
        self._held.clear()


def _is_moment(value: Any, parameter: nn.Parameter) -> bool:
    """Tell Adam's moments from its step count, which has no dimension."""
    return torch.is_tensor(value) and value.shape == parameter.shape and value.dim() > 0
