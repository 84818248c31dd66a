"""Sweeps on this machine: one process a run, shared grids, crashes and kills, the commands that go on."""

import json
import multiprocessing.forkserver
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dypam import record
from dypam.config import Runtime
from dypam.lease import Lease
from scripts import forked, sweep, worker
from tests.scripts import house
from tests.scripts.test_command import ROOT, call
from tests.scripts.test_run import overrides, read

# A script of the project's own kind: its stage ends in a way that its seed says, or leaves a file.
SCRIPT = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from dypam.lease import Lease
from dypam.record import Record
from scripts import command, sweep

sweep.preloads = lambda configs: []  # nothing here needs them

def stage(config):
    with Lease.acquire(config.run_dir) as lease, Record.open(config.run_dir, config, lease).stage("train"):
        print("seed", config.seed, flush=True)
        if config.seed == 2:
            raise RuntimeError("planted")
        if config.seed == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if config.seed == 5:
            Path({out!r}, "begun").write_text(str(os.getpid()))
            time.sleep(60)
        if config.seed == 7:
            Path({out!r}, "begun").write_text(str(os.getppid()))
            time.sleep(4)
        Path({out!r}, str(config.seed)).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))

def done(config):
    return Record.open(config.run_dir, config, None).finished("train")

if __name__ == "__main__":
    command.main(stage, "Doc.", done)
"""


@pytest.fixture
def script(tmp_path):
    return house.stage(tmp_path, SCRIPT)


def made(tmp_path):
    return sorted(path.name for path in (tmp_path / "out").iterdir())


def status(tmp_path, seed):
    return record.read_record(tmp_path / f"runs/minimath/gemma3-270m/dypam/seed{seed}")


def test_crashes_and_kills_leave_the_others_alone_and_are_told_with_the_command_that_repeats_them(
    script, tmp_path
):
    given = (f"results={tmp_path}", "runtime.workers=2")
    done = call(script, "-m", "seed=1,2,3,4", *given)
    assert done.returncode == 1
    assert made(tmp_path) == ["1", "3"]
    assert "2 of 4 runs did not finish; to run them again:" in done.stderr
    rest = " ".join(given)
    assert f"python {script} seed=2 {rest}   # exit code 1: RuntimeError: planted" in done.stderr
    assert (
        f"python {script} seed=4 {rest}   # exit code 137: killed by SIGKILL, out of memory?" in done.stderr
    )
    assert status(tmp_path, 4)["status"] == "failed"
    assert status(tmp_path, 4)["error"] == "killed by SIGKILL, out of memory?"
    assert "2 of 4 runs are finished, 2 by this sweep." in done.stdout
    assert "seed 3" not in done.stdout
    (log,) = tmp_path.glob("runs/*/*/*/seed3/output.log")
    assert log.read_text() == "seed 3\n"

    again = call(script, "-m", "seed=1,2,3", *given)
    assert again.returncode == 1
    assert "failed before (RuntimeError: planted)" in again.stderr
    assert "started" not in again.stdout
    again = call(script, "-m", "seed=2", *given, "runtime.retry_failed=true")
    assert "started" in again.stdout


def test_sigterm_ends_all_children_and_leaves_them_resumable(script, tmp_path):
    command = [sys.executable, script, "-m", "seed=5,6", f"results={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_for(tmp_path / "out/begun")
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "the same command goes on from here" in output
    child = int((tmp_path / "out/begun").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert status(tmp_path, 5)["status"] == "preempted"
    assert made(tmp_path) == ["begun"]


def test_a_run_that_another_worker_has_is_left_alone_until_it_is_given_back(script, tmp_path):
    run_dir = tmp_path / "runs/minimath/gemma3-270m/dypam/seed1"
    command = [sys.executable, script, "-m", "seed=1,3", f"results={tmp_path}"]
    with Lease.acquire(run_dir):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_for(tmp_path / "out/3")
        time.sleep(3)
        assert process.poll() is None
        assert made(tmp_path) == ["3"]
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count(f"Waiting for 1 runs that other workers have: {run_dir} is being worked on by") == 1
    assert made(tmp_path) == ["1", "3"]


def test_a_run_whose_fork_server_was_killed_is_waited_for(script, tmp_path):
    command = [sys.executable, script, "-m", "seed=7,3", f"results={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(tmp_path / "out/begun")
    time.sleep(0.2)
    os.kill(int((tmp_path / "out/begun").read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "seed7: another worker has it; later" in output
    assert output.count("started") == 2
    assert made(tmp_path) == ["3", "7", "begun"]


@pytest.mark.parametrize(("by", "own"), [([], True), ([1], True), ([1, 77], False), ([1, 77, 5], True)])
def test_what_another_worker_finished_meanwhile_does_not_count_as_own(tmp_path, by, own):
    """Process 5 began when the record held one attempt; a run that is only scored anew adds none."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    attempts = [{"stage": "train", "pid": pid} for pid in by]
    (run_dir / "record.json").write_text(json.dumps({**record.EMPTY, "attempts": attempts}))
    run = worker.Run(1, [], SimpleNamespace(run_dir=run_dir), tried=1)
    assert worker.Worker(SimpleNamespace(pid=5), run, {}, None, 0.0).did_it() is own


def test_a_server_that_dies_while_it_is_asked_is_replaced(monkeypatch):
    server = multiprocessing.forkserver._forkserver
    alive, asked = server.ensure_running, []

    def dying():
        asked.append(1)
        if len(asked) != 2:  # the second question is that of the process itself: the death is not yet known
            alive()
        if len(asked) == 1:
            os.kill(server._forkserver_pid, signal.SIGKILL)
            time.sleep(0.2)

    monkeypatch.setattr(server, "ensure_running", dying)
    monkeypatch.setattr(forked.forkserver, "ensure_running", dying)
    process = forked.CONTEXT.Process(target=time.sleep, args=(0,))
    forked.start(process, [])
    process.join()
    assert process.exitcode == 0
    assert len(asked) == 4


def test_a_method_whose_module_is_broken_ends_its_own_runs_alone(tmp_path):
    (tmp_path / "broken_method.py").write_text("raise RuntimeError('planted')")
    (tmp_path / "stage.py").write_text(
        TELL.format(root=str(ROOT)).replace(
            "    loaded =", "    __import__(config.method['_target_'].rpartition('.')[0])\n    loaded ="
        )
    )
    given = ("method=base", "method._target_=baselines.base.Base,broken_method.Mine", f"results={tmp_path}")
    places = ("run_dir=${results}/${method._target_}", "seed=1")
    done = call(tmp_path / "stage.py", "-m", *given, *places, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert (tmp_path / "1.json").exists()
    assert "1 of 2 runs did not finish" in done.stderr
    assert "RuntimeError: planted" in done.stderr


def test_a_log_that_cannot_be_written_is_told(script, tmp_path):
    code = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
    code += f"sys.argv = {[str(script), '-m', 'seed=8,9', f'results={tmp_path}', 'runtime.workers=2']!r}\n"
    done = call("-c", code + f"runpy.run_path({str(script)!r}, run_name='__main__')")
    assert done.returncode == 1
    assert done.stderr.count("# exit code 2: Error: ") == 2
    assert done.stderr.count("cannot be written (File too large): free disk space") == 2


def test_runs_that_differ_and_share_a_directory_are_refused_before_the_first(script, tmp_path):
    done = call(script, "-m", "train.lr=0.1,0.2", f"results={tmp_path}")
    assert done.returncode == 2
    assert "train.lr is 0.1 there, 0.2 here): put what differs into run_dir or a name." in done.stderr
    assert made(tmp_path) == []
    twice = sweep.plan([f"results={tmp_path}", "seed=1,1,2"])
    assert [(run.number, run.config.seed) for run in twice] == [(1, 1), (2, 2)]


def wait_for(path, seconds=120):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("runtime", "visible", "expected"),
    [
        ({}, "", [{}]),
        ({"workers": 3}, "", [{}] * 3),
        ({"device": "cpu"}, "0,1", [{}]),
        ({"device": "cuda:1"}, "0,1", [{}]),
        ({}, "2,GPU-x,-1,3", [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "GPU-x"}]),
        ({"workers": 3}, "4,5", [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in "454"]),
    ],
)
def test_a_slot_for_each_gpu(monkeypatch, runtime, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sweep.slots(Runtime(**runtime)) == expected


def test_each_run_sees_the_gpu_of_its_slot(script, tmp_path):
    done = call(script, "-m", "seed=1,3", f"results={tmp_path}", CUDA_VISIBLE_DEVICES="7,8")
    assert done.returncode == 0, done.stderr
    assert {(tmp_path / "out" / seed).read_text() for seed in "13"} == {"7", "8"}


# What a process may carry over into a run, told from within one; `run.py` alone must tell the same.
TELL = """
import json, os, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from scripts import command

LOADED = {{"deepspeed", "peft", "datasets", "dypam.train", "eval.generate", "baselines.base"}}

def stage(config):
    loaded = LOADED <= sys.modules.keys()
    from dypam.distributed import start
    import torch, threading, random
    start("cpu")
    import deepspeed
    told = {{
        # a newer DeepSpeed sets this one too
        "environment": {{k: v for k, v in os.environ.items() if k != "PYTORCH_NVML_BASED_CUDA_CHECK"}},
        "threads": torch.get_num_threads(),
        "accelerator": deepspeed.get_accelerator().device_name(),
        "python threads": [thread.name for thread in threading.enumerate()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "path": list(dict.fromkeys(sys.path))[:2],  # setuptools adds its own at the end
        "argv": sys.argv[0],
    }}
    Path(config.results, f"{{config.seed}}.json").write_text(json.dumps([loaded, told]))

if __name__ == "__main__":
    command.main(stage, "Doc.")
"""


def test_a_forked_run_finds_what_a_process_of_its_own_would(tmp_path):
    path = tmp_path / "tell.py"
    path.write_text(TELL.format(root=str(ROOT)))
    for flags in ([], ["-m"]):
        seed = f"seed={len(flags)}"
        done = call(path, *flags, "method=base", seed, f"results={tmp_path}", OMP_NUM_THREADS="2")
        assert done.returncode == 0, done.stderr
    alone, forked = (json.loads((tmp_path / f"{seed}.json").read_text()) for seed in (0, 1))
    assert (alone[0], forked[0]) == (False, True)
    assert forked[1] == alone[1]


@pytest.mark.slow
def test_a_sweeps_run_ends_in_the_same_bits_as_one_alone(tiny_backbone_dir, tmp_path):
    results = []
    for flags in ([], ["-m"]):
        results.append(tmp_path / f"with{''.join(flags)}")
        given = overrides(tiny_backbone_dir("qwen3"), results[-1])
        done = call("scripts/run.py", *flags, *given, "method=dypam")
        assert done.returncode == 0, done.stderr
    alone, forked = (next(folder.glob("runs/*/*/*/*")) for folder in results)
    for name in ("final_weights", "losses", "best", "tokens", "threads"):
        assert read(alone / "record.json")[name] == read(forked / "record.json")[name], name
    for path in sorted((alone / "predictions").iterdir()):
        assert path.read_bytes() == (forked / "predictions" / path.name).read_bytes()


def own_runs(output):
    return int(re.search(r"runs are finished, (\d+) by this sweep", output)[1])


def attempts(results):
    """Return the stages that each run's attempts were about, by run."""
    return {
        path.parent: [attempt["stage"] for attempt in read(path)["attempts"]]
        for path in results.glob("runs/*/*/*/*/record.json")
    }


@pytest.mark.slow
def test_two_sweeps_share_a_grid(tiny_backbone_dir, tmp_path):
    given = overrides(tiny_backbone_dir("qwen3"), tmp_path, **{"runtime.threads": 1})
    seeds = "seed=" + ",".join(map(str, range(1, 11)))
    command = [sys.executable, ROOT / "scripts/run.py", "-m", *given, "method=lora", seeds]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=500)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    shares = [own_runs(output) for output in outputs]
    assert sum(shares) == 10
    assert min(shares) >= 2
    assert list(attempts(tmp_path).values()) == [["train", "generate"]] * 10


@pytest.mark.slow
def test_a_killed_tree_goes_on_by_the_same_command(tiny_backbone_dir, tmp_path):
    given = overrides(tiny_backbone_dir("qwen3"), tmp_path, **{"runtime.threads": 1, "runtime.workers": 2})
    command = [sys.executable, str(ROOT / "scripts/run.py"), "-m", *given, "method=lora", "seed=1,2,3,4"]
    first = subprocess.Popen(command, start_new_session=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while not any(stages for stages in attempts(tmp_path).values()):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    left = attempts(tmp_path)
    assert not all(read(path / "record.json")["status"] == "finished" for path in left) or len(left) < 4
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs are finished" in done.stdout
    assert len(attempts(tmp_path)) == 4
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "4 of 4 runs are finished, 0 by this sweep." in again.stdout
    assert "started" not in again.stdout


def test_the_preloaded_modules_are_there():
    """The fork server passes over what it cannot import: here it would be seen."""
    code = (
        "import sys, scripts.preload as p\n"
        "print(sorted(set(p.MODULES) - set(sys.modules)), sys.modules['torch'].cuda.is_initialized())"
    )
    done = call("-c", code)
    assert done.stdout.strip() == "[] False", done.stderr


def test_run_dirs_of_a_plan(tmp_path):
    runs = sweep.plan([f"results={tmp_path}", "seed=1,2"])
    assert [(run.number, Path(run.config.run_dir).name) for run in runs] == [(1, "seed1"), (2, "seed2")]
