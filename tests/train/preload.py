"""What the fork server imports once."""

import deepspeed  # noqa: F401

import baselines.lora
import dypam.train
import dypam.tuner.method
import tests.tiny  # noqa: F401
