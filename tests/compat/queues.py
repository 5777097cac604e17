#!/usr/bin/env python3
"""Runs common job queues with the front, while processes of pmnet are killed. Does every job run exactly once?

  tests/compat/queues.py                       Celery, BullMQ and Sidekiq for a minute each, with this machine's Redis
  tests/compat/queues.py --store valkey-9.1 --only bullmq --seconds 20

The jobs count their runs directly in Redis, without pmnet, so that the counts do not pass through the system under
test. The server and the device are killed by turns (kill -9), and are restarted at once. The front is not killed,
because the popped element may be lost if a client's connection breaks during a blocking pop. With Redis alone the
element may be lost as well.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import servers
from stack import TARGET, Stack, Trouble, binary_path, end, start_logged, stop_all

# Packages of the queues, with their versions.
CELERY = "celery==5.5.3"
BULLMQ = "bullmq@5.58.5"
# Sidekiq runs with Debian's Ruby. The script unpacks Ruby, and does not install it on the system.
SIDEKIQ_SUITE = "trixie"
SIDEKIQ_VERSION = "7.3."
INSTALL_SECONDS_MAX = 240
# Seconds between two kills, and seconds that the remaining jobs have after the last new job.
KILL_EVERY = 3
DRAIN_SECONDS_MAX = 60
JOBS_PER_SECOND = 40
# The hash in which a job counts its runs: the field is the job, and the value is the number of runs.
RAN = "queues:ran"
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Killable(Stack):
    """A Stack whose processes can be killed and restarted with the same arguments."""

    def _spawn(self, name, command):
        process, log = super()._spawn(name, command)
        self.commands = getattr(self, "commands", {})
        self.commands[name] = command
        return process, log

    def kill(self, name):
        """Kills a process (kill -9) and starts it again."""
        process = dict(self.processes)[name]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.processes = [(other, found) for other, found in self.processes if other != name]
        process, log = self._spawn(name, self.commands[name])
        self._wait(name, process, log, lambda: b"ready " in log.read_bytes())


def ask(port, *words):
    """Sends one command to a Redis. Returns the reply as bytes. The reply is complete if it arrives in one piece, or
    if it is a hash of short texts."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(request.encode() + b"*1\r\n$4\r\nPING\r\n")
        got = b""
        while not got.endswith(b"+PONG\r\n"):
            part = client.recv(1 << 20)
            if not part:
                raise Trouble("Redis closed the connection")
            got += part
    return got[: -len(b"+PONG\r\n")]


def ran(port):
    """Returns {job: number of runs}."""
    texts = [line for line in ask(port, "HGETALL", RAN).split(b"\r\n")[1:] if line and not line.startswith(b"$")]
    return {job.decode(): int(times) for job, times in zip(texts[::2], texts[1::2])}


def install(folder, *command):
    """Runs an installer, unless it has already run."""
    done = folder / "done"
    if done.is_file() and done.read_text() == str(command):
        return
    folder.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(command, timeout=INSTALL_SECONDS_MAX, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if found.returncode:
        raise Trouble(f"{' '.join(command[:4])} …: {found.stderr[-800:]}")
    done.write_text(str(command))


CELERY_APP = """
import os, redis
from celery import Celery
app = Celery("jobs", broker=os.environ["BROKER"])
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True,
    task_ignore_result=True, broker_transport_options={"visibility_timeout": 3600}, worker_hijack_root_logger=False)
beside = redis.Redis(port=int(os.environ["BESIDE"]))
@app.task(name="job")
def job(number):
    beside.hincrby("queues:ran", number, 1)
"""

CELERY_PRODUCER = """
import sys, time
sys.path.insert(0, ".")
from jobs import job
sent = 0
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    try:
        job.apply_async(args=[sent], retry=False)
        print(f"sent {sent}", flush=True)
    except Exception as error:
        print(f"doubt {sent} {error}", flush=True)
    sent += 1
    time.sleep(1 / float(sys.argv[2]))
"""

BULLMQ_WORKER = """
const { Worker } = require('bullmq')
const Redis = require('ioredis')
const beside = new Redis({ port: +process.env.BESIDE })
const connection = { port: +process.env.PORT, maxRetriesPerRequest: null }
const worker = new Worker('jobs', job => beside.hincrby('queues:ran', String(job.data.number), 1), { connection, concurrency: 4 })
worker.on('error', error => console.log(`error ${error.message}`))
"""

BULLMQ_PRODUCER = """
const { Queue } = require('bullmq')
const queue = new Queue('jobs', { connection: { port: +process.env.PORT, maxRetriesPerRequest: null } })
queue.on('error', error => console.log(`error ${error.message}`))
const [seconds, rate] = process.argv.slice(2).map(Number)
const until = Date.now() + seconds * 1000
;(async () => {
  for (let sent = 0; Date.now() < until; sent++) {
    try {
      await queue.add('job', { number: sent }, { removeOnComplete: true })
      console.log(`sent ${sent}`)
    } catch (error) { console.log(`doubt ${sent} ${error.message}`) }
    await new Promise(done => setTimeout(done, 1000 / rate))
  }
  process.exit(0)
})()
"""

# Every fifth job is scheduled (a ZADD; later a script takes it out). Every seventh job fails once, and its retry is
# scheduled too.
SIDEKIQ_JOBS = """
require 'sidekiq'
# This timeout is longer than pmnet's deadline. If Sidekiq gave up a command earlier, it would repeat the command, and
# the element that the first command popped would be lost. The same happens with Redis alone.
store = { url: "redis://127.0.0.1:#{ENV['PORT']}/0", timeout: 15 }
BESIDE = RedisClient.config(port: ENV['BESIDE'].to_i).new_pool(size: 4)
Sidekiq.configure_client { |config| config.redis = store }
class FailsOnce
  include Sidekiq::ServerMiddleware
  def call(_job, message, _queue)
    raise 'fails once' if message['args'][0] % 7 == 3 && message['retry_count'].nil?
    yield
  end
end
Sidekiq.configure_server do |config|
  config.redis = store
  config.logger.level = Logger::ERROR
  config[:poll_interval_average] = 1
  config[:error_handlers].clear
  config.server_middleware { |chain| chain.add FailsOnce }
end
class Job
  include Sidekiq::Job
  sidekiq_options retry: 3
  sidekiq_retry_in { 1 }
  def perform(number)
    BESIDE.call('HINCRBY', 'queues:ran', number, 1)
  end
end
"""

SIDEKIQ_PRODUCER = """
require_relative 'jobs'
seconds, rate = ARGV.map(&:to_f)
clock = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
till = clock.call + seconds
$stdout.sync = true
sent = 0
while clock.call < till
  begin
    sent % 5 == 4 ? Job.perform_in(1, sent) : Job.perform_async(sent)
    puts "sent #{sent}"
  rescue StandardError => error
    puts "doubt #{sent} #{error.message}"
  end
  sent += 1
  sleep(1 / rate)
end
"""


def celery(target, folder, port, beside):
    """Installs Celery, and writes its programs. Returns the commands of worker and producer, and their environment."""
    venv = target / "queues" / "celery"
    if not (venv / "bin/python").exists():
        venv.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=INSTALL_SECONDS_MAX)
    install(venv, str(venv / "bin/pip"), "-q", "install", "--disable-pip-version-check", CELERY, "redis==5.2.1")
    (folder / "jobs.py").write_text(CELERY_APP)
    (folder / "producer.py").write_text(CELERY_PRODUCER)
    environment = {"BROKER": f"redis://127.0.0.1:{port}/0", "BESIDE": str(beside)}
    python = str(venv / "bin/python")
    worker = [python, "-m", "celery", "-A", "jobs", "worker", "--concurrency", "2", "-P", "threads", "--loglevel", "WARNING"]
    return worker, [python, "producer.py"], environment


def bullmq(target, folder, port, beside):
    """Installs BullMQ, and writes its programs. Returns the commands of worker and producer, and their environment."""
    place = target / "queues" / "bullmq"
    if shutil.which("npm") is None:
        raise Trouble("there is no npm")
    install(place, "npm", "--prefix", str(place), "--no-audit", "--no-fund", "--ignore-scripts", "install", BULLMQ)
    (folder / "worker.js").write_text(BULLMQ_WORKER)
    (folder / "producer.js").write_text(BULLMQ_PRODUCER)
    environment = {"PORT": str(port), "BESIDE": str(beside), "NODE_PATH": str(place / "node_modules")}
    return ["node", "worker.js"], ["node", "producer.js"], environment


def ruby(place):
    """Unpacks Sidekiq and Ruby into `place`. Returns the command that runs Ruby, and its environment."""
    done = place / "done"
    if not done.is_file() or done.read_text() != SIDEKIQ_SUITE:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        servers.unpack((SIDEKIQ_SUITE,), place, "ruby", "ruby-sidekiq")
        done.write_text(SIDEKIQ_SUITE)
    lent = servers.libraries(place)
    if lent is None:
        raise Trouble(f"{place} has no loader: remove it and try again")
    loader, places = lent
    version = max(path.name for path in (place / "usr/lib/ruby").glob("[0-9]*"))
    parts = ["usr/lib/ruby/vendor_ruby", f"usr/lib/ruby/{version}", f"usr/lib/x86_64-linux-gnu/ruby/{version}"]
    gems = ["usr/share/rubygems-integration/all", f"usr/lib/ruby/gems/{version}"]
    environment = {
        "RUBYLIB": ":".join(str(place / part) for part in parts),
        "GEM_PATH": ":".join(str(place / part) for part in gems),
        "GEM_HOME": str(place / "gems"),
    }
    return [str(loader), "--library-path", ":".join(places), str(place / "usr/bin/ruby")], environment


def sidekiq(target, folder, port, beside):
    """Installs Sidekiq, and writes its programs. Returns the commands of worker and producer, and their environment."""
    place = target / "queues" / "sidekiq"
    command, environment = ruby(place)
    program = next(place.glob(f"usr/share/rubygems-integration/all/gems/sidekiq-{SIDEKIQ_VERSION}*/bin/sidekiq"), None)
    if program is None:
        raise Trouble(f"{SIDEKIQ_SUITE} has another Sidekiq than {SIDEKIQ_VERSION}: change SIDEKIQ_VERSION")
    (folder / "jobs.rb").write_text(SIDEKIQ_JOBS)
    (folder / "producer.rb").write_text(SIDEKIQ_PRODUCER)
    environment |= {"PORT": str(port), "BESIDE": str(beside)}
    return [*command, str(program), "-r", "./jobs.rb", "-c", "4"], [*command, "producer.rb"], environment


QUEUES = {"celery": celery, "bullmq": bullmq, "sidekiq": sidekiq}


def start(name, command, folder, environment):
    """Starts a process of the queue. Returns the process, and the path of its output."""
    log = folder / f"{name}.log"
    return start_logged(command, folder, log, **environment), log


def run(name, options, target):
    """Runs one queue. Returns the faults that were found."""
    chosen = random.Random(options.seed)
    with Killable(options.binary, options=DURABLE) as stack:
        folder = stack.folder / name
        folder.mkdir()
        worker, producer, environment = QUEUES[name](target, folder, stack.port, stack.redis_port)
        working, worker_log = start("worker", worker, folder, environment)
        time.sleep(3)
        command = [*producer, str(options.seconds), str(JOBS_PER_SECOND)]
        producing, producer_log = start("producer", command, folder, environment)
        kills = 0
        while producing.poll() is None:
            time.sleep(KILL_EVERY * chosen.uniform(0.5, 1.5))
            if producing.poll() is None:
                stack.kill(chosen.choice(["pmnet-server", "pmnet-device"]))
                kills += 1
        said = [line.split(" ", 2) for line in producer_log.read_text(errors="replace").splitlines()]
        sent = {words[1] for words in said if words[0] == "sent"}
        doubt = {words[1] for words in said if words[0] == "doubt"}
        until = time.monotonic() + DRAIN_SECONDS_MAX
        done = ran(stack.redis_port)
        while not sent <= done.keys() and time.monotonic() < until:
            time.sleep(1)
            done = ran(stack.redis_port)
        end(working)
        lost, twice = sorted(sent - done.keys()), sorted(job for job, times in done.items() if times > 1)
        print(
            f"{name:<8} {len(sent)} jobs acknowledged, {len(doubt)} in doubt, {kills} kills: "
            f"{len(lost)} lost, {len(twice)} ran twice",
            flush=True,
        )
        if lost or twice or not sent:
            print(f"  lost {lost[:10]}, twice {twice[:10]}")
            for log in (worker_log, producer_log):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
            print(stack.logs())
    return bool(lost or twice or not sent)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=QUEUES)
    parser.add_argument("--store", metavar="NAME", help="another server than this machine's redis-server (servers.py)")
    parser.add_argument("--seconds", type=int, default=60, help="for so long jobs are sent, for each queue")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--pmnet", metavar="FILE", help="the binary (default: target/release/pmnet)")
    options = parser.parse_args()
    if options.store:
        os.environ.update(servers.environment(options.store))
    options.binary = binary_path(options.pmnet)
    wrong = [run(name, options, TARGET) for name in options.only or QUEUES]
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        sys.exit(main())
    except (Trouble, servers.Missing) as trouble:
        sys.exit(str(trouble))
    finally:
        stop_all()
