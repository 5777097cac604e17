"""Makes every error that a program can make, with a real device. Each error must raise its exception, and nothing may
be lost.

    misuse.py SERVER DEVICE HEADER

SERVER is the address to which the device sends. HEADER is the path of libpmnet's header. Further arguments are names of
tests.
"""

import asyncio
import importlib
import inspect
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import unittest

import pmnet

LISTEN, DEVICE, HEADER = sys.argv[1:4]
LONGEST = 16 << 20
WAIT = 60.0


class Program:
    """A server program without errors, in a thread."""

    def __init__(self, rows=None):
        self.rows = dict(rows or {})
        self.updates = []
        self.ends = False
        self.server = pmnet.Server(LISTEN, rows=self.rows.items())
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ends:
            batch = self.server.next(0.05)
            if batch is not None:
                self.turn(batch)
        self.server.close()

    def turn(self, batch):
        for at, item in enumerate(batch.items):
            if item.kind is pmnet.Kind.UPDATE:
                self.updates.append(item.payload)
            else:
                batch.reply(at, item.payload)
        for key, value in batch.rows():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        batch.done()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()


ROWS = {}
"""The rows that the programs of these tests have stored. The programs serve one device, one after the other."""


def program():
    one = Program(ROWS)
    globals()["ROWS"] = one.rows
    return one


def client(**options):
    return pmnet.Client(DEVICE, **{"timeout": WAIT, **options})


def settle(server):
    """Confirms the batches that earlier tests have left for this server."""
    while (batch := server.next(0.5)) is not None:
        confirm(batch)


def confirm(batch):
    for at, item in enumerate(batch.items):
        if item.kind is not pmnet.Kind.UPDATE:
            batch.reply(at, b"")
    for key, value in batch.rows():
        if value is None:
            ROWS.pop(key, None)
        else:
            ROWS[key] = value
    batch.done()


class Arguments(unittest.TestCase):
    def test_classes_have_the_numbers_of_the_header(self):
        with open(HEADER) as file:
            codes = dict(re.findall(r"#define PMNET_E_(\w+) (-\d+)", file.read()))
        self.assertGreater(len(codes), 20)
        names = {"SYSTEM": "SystemCallError"}
        for name, code in codes.items():
            words = [word.capitalize() for word in name.split("_")]
            error = getattr(pmnet, names.get(name, "".join(words) + "Error"))
            self.assertEqual(error.code, int(code), name)
            self.assertIn(error.__name__, pmnet.__all__)

    def test_everything_public_says_what_it_is(self):
        for name in pmnet.__all__:
            one = getattr(pmnet, name)
            if not (inspect.isclass(one) or callable(one)):
                continue
            self.assertTrue(inspect.getdoc(one), name)
            for member, value in vars(one).items() if inspect.isclass(one) else ():
                if not member.startswith("_") and not isinstance(value, (int, staticmethod)):
                    self.assertTrue(inspect.getdoc(value), f"{name}.{member}")

    def test_options_that_make_no_sense(self):
        for devices in ("", "nowhere", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:1,[::1]:1", [], ()):
            with self.assertRaises(pmnet.ArgumentError, msg=devices):
                pmnet.Client(devices)
        for devices in (None, 7, b"127.0.0.1:1", ["127.0.0.1:1", None]):
            with self.assertRaises(TypeError, msg=devices):
                pmnet.Client(devices)
        for options in (
            {"shard": -1},
            {"shard": 1 << 32},
            {"copies_min": 0},
            {"copies_min": 9},
            {"timeout": 0},
            {"timeout": -1},
            {"timeout": float("nan")},
            {"timeout": float("inf")},
            {"calls_max": 0},
        ):
            with self.assertRaises(ValueError, msg=options) as raised:
                pmnet.Client(DEVICE, **options)
            self.assertIsInstance(raised.exception, pmnet.Error)
        for options in ({"shard": None}, {"timeout": "1"}, {"timeout": None}, {"nothing": 1}):
            with self.assertRaises(TypeError, msg=options):
                pmnet.Client(DEVICE, **options)
        pmnet.Client([DEVICE], timeout=0.1)
        for options in ({"batch_entries_max": 0}, {"batch_bytes_max": -1}, {"rows": [], "watermark": b""}):
            with self.assertRaises(pmnet.ArgumentError, msg=options):
                pmnet.Server("127.0.0.1:0", **options)
        for options in ({"rows": 7}, {"rows": [None]}, {"rows": [(b"k",)]}, {"rows": [(b"k", None)]}, {"watermark": "x"}):
            with self.assertRaises((TypeError, ValueError), msg=options):
                pmnet.Server("127.0.0.1:0", **options)
        with self.assertRaises(pmnet.SystemCallError), pmnet.Server("127.0.0.1:0") as one:
            pmnet.Server(f"127.0.0.1:{one.port}")

    def test_rows_and_watermarks_that_are_none(self):
        with self.assertRaises(pmnet.RowsError):
            pmnet.Server("127.0.0.1:0", rows=[(b"key", b"value")])
        with self.assertRaises(pmnet.RowsError):
            pmnet.Server("127.0.0.1:0", watermark=b"pmnetrow" + bytes(30))
        for watermark in (b"", bytes(100), bytearray(), memoryview(b"")):
            pmnet.Server("127.0.0.1:0", watermark=watermark).close()

    def test_payloads_of_wrong_types(self):
        with program(), client() as one:
            for payload in (None, "text", 7, [1], object()):
                for call in (one.update, one.bypass, lambda payload: one.update_start(1, payload)):
                    with self.assertRaises(TypeError) as raised:
                        call(payload)
                    self.assertIn("payload must be bytes", str(raised.exception))
                with self.assertRaises(TypeError):
                    one.update(b"", key=payload if payload is not None else 7)
            for token in (-1, 1 << 64, None, "1"):
                with self.assertRaises((TypeError, OverflowError)):
                    one.update_start(token, b"")
            with self.assertRaises(pmnet.LengthError):
                one.update(bytes(LONGEST + 1))
            for timeout in (-1, float("nan")):
                with self.assertRaises(pmnet.ArgumentError):
                    one.next(timeout)

    def test_classes_are_not_made_by_hand(self):
        for one in (pmnet.Batch, pmnet.Item, pmnet.Event, pmnet.Reading):
            with self.assertRaises(TypeError):
                one()


class Objects(unittest.TestCase):
    def test_closed_ones(self):
        with program():
            one = client()
            one.update(b"x")
            one.close()
            one.close()
            for call in (lambda: one.update(b""), lambda: one.bypass(b""), one.read, one.fileno, lambda: one.next(0)):
                with self.assertRaises(pmnet.HandleError):
                    call()
        server = pmnet.Server(LISTEN, rows=ROWS.items())
        settle(server)
        server.close()
        server.close()
        for call in (lambda: server.next(0), server.fileno, lambda: next(iter(server))):
            with self.assertRaises(pmnet.HandleError):
                call()

    def test_two_threads(self):
        with pmnet.Server("127.0.0.1:0") as server, pmnet.Client("127.0.0.1:9", timeout=3) as one:
            found = []

            def wait(call):
                try:
                    found.append(call())
                except pmnet.UnknownError as error:
                    found.append(error)
                except pmnet.FailedError as error:
                    found.append(error)

            threads = [
                threading.Thread(target=wait, args=(lambda: server.next(2),)),
                threading.Thread(target=wait, args=(lambda: one.update(b""),)),
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            for call in (lambda: server.next(0), server.close, lambda: one.update(b""), one.close):
                with self.assertRaises(pmnet.ThreadError):
                    call()
            for thread in threads:
                thread.join()
            self.assertEqual(len(found), 2)

    def test_after_a_fork(self):
        with program(), client() as one:
            one.update(b"before")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    refused = 0
                    # `close` must not fail in the child, because atexit functions that the parent registered also run
                    # in the child.
                    one.close()
                    for call in (lambda: one.update(b"child"), one.fileno):
                        try:
                            call()
                        except pmnet.ForkError:
                            refused += 1
                    # The child drops its own objects, and its references to the parent's objects.
                    del one, call
                    with pmnet.Client(DEVICE, timeout=WAIT) as own:
                        own.update(b"own")
                    code = 0 if refused == 2 else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(one.bypass(b"still there"), b"still there")

    def test_a_child_leaves_its_parents_blocks(self):
        """Two kinds of children: a worker that is forked inside a `with` and ends by sys.exit, and a process that
        asyncio has forked."""
        with program(), client() as one:
            one.update(b"before")
            child = os.fork()
            if child == 0:
                try:
                    with one:
                        sys.exit(7)
                except SystemExit:
                    os._exit(7)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
            self.assertEqual(one.bypass(b"still there"), b"still there")

            async def parent():
                async with pmnet.AsyncClient(DEVICE, timeout=WAIT) as other:
                    await other.update(b"before")
                    child = os.fork()
                    if child == 0:
                        code = 1
                        try:
                            await other.close()
                            await other.close()
                            code = 0
                        finally:
                            os._exit(code)
                    self.assertEqual(os.waitpid(child, 0)[1], 0)
                    self.assertEqual(await other.bypass(b"still there"), b"still there")

            asyncio.run(parent())

    def test_a_server_in_the_child_of_a_fork(self):
        # The fork happens during a call of another thread.
        with pmnet.Server("127.0.0.1:0") as server:
            waiting = threading.Thread(target=server.next, args=(1,))
            waiting.start()
            time.sleep(0.2)
            child = os.fork()
            if child == 0:
                try:
                    server.next(0)
                except pmnet.ForkError:
                    server.close()
                    del server
                    os._exit(0)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            waiting.join()
            self.assertIsNone(server.next(0))

    def test_interrupts(self):
        """Ctrl-C ends each waiting call at once."""
        nobody = pmnet.Client("127.0.0.1:9", timeout=WAIT)
        with pmnet.Server("127.0.0.1:0") as server:
            for call in (
                lambda: nobody.update(b""),
                lambda: nobody.bypass(b""),
                lambda: nobody.next(),
                lambda: server.next(),
                lambda: next(server),
                lambda: nobody.close(),
            ):
                begun = time.monotonic()
                killer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
                killer.start()
                try:
                    with self.assertRaises(KeyboardInterrupt):
                        call()
                finally:
                    killer.cancel()
                    killer.join()
                self.assertLess(time.monotonic() - begun, WAIT / 4)

    def test_the_interpreter_is_let_go(self):
        """While a call waits, other threads can run."""
        with pmnet.Server("127.0.0.1:0") as server:
            waiting = threading.Thread(target=server.next, args=(1,))
            waiting.start()
            turns = 0
            while waiting.is_alive():
                turns += 1
                time.sleep(0.01)
            self.assertGreater(turns, 20)


class Batches(unittest.TestCase):
    def setUp(self):
        self.server = pmnet.Server(LISTEN, rows=ROWS.items())
        settle(self.server)
        self.client = client()

    def tearDown(self):
        self.server.close()
        self.client._forget()

    def batch(self):
        while True:
            batch = self.server.next(WAIT)
            self.assertIsNotNone(batch)
            if batch.items:
                return batch
            confirm(batch)

    def test_updates_in_wrong_orders(self):
        self.client.update(b"one")
        batch = self.batch()
        self.assertEqual([item.payload for item in batch.items], [b"one"])
        with self.assertRaises(pmnet.OrderError):
            self.server.next(0)
        with self.assertRaises(pmnet.OrderError):
            batch.done()
        with self.assertRaises(pmnet.ReplyError):
            batch.reply(0, b"")
        with self.assertRaises(pmnet.ArgumentError):
            batch.reply(1, b"")
        with self.assertRaises(OverflowError):
            batch.reply(-1, b"")
        with self.assertRaises(TypeError):
            batch.reply(0, None)
        # The batch is offered again.
        batch.undone()
        with self.assertRaises(pmnet.OrderError):
            batch.undone()
        again = self.batch()
        self.assertEqual([item.payload for item in again.items], [b"one"])
        for call in (batch.done, batch.rows, batch.watermark, lambda: batch.reply(0, b"")):
            with self.assertRaises(pmnet.OrderError):
                call()
        confirm(again)
        for call in (again.done, again.undone, again.rows):
            with self.assertRaises(pmnet.OrderError):
                call()
        with self.assertRaises(AttributeError):
            again.number = 7

    def test_replies(self):
        for length in (0, 1, LONGEST):
            found = []
            asking = threading.Thread(target=lambda: found.append(self.client.bypass(b"?")))
            asking.start()
            batch = self.batch()
            with self.assertRaises(pmnet.ReplyError):
                batch.rows()
            with self.assertRaises(pmnet.ReplyError):
                batch.done()
            with self.assertRaises(pmnet.LengthError):
                batch.reply(0, bytes(LONGEST + 1))
            reply = os.urandom(length)
            batch.reply(0, memoryview(reply) if length == 1 else bytearray(reply))
            with self.assertRaises(pmnet.ReplyError):
                batch.reply(0, reply)
            for key, value in batch.rows():
                ROWS[key] = value
            batch.done()
            while asking.is_alive():
                if (rest := self.server.next(0.01)) is not None:
                    confirm(rest)
            self.assertEqual(found, [reply])

    def test_a_watermark_from_another_shard_or_damaged(self):
        self.client.update(b"one")
        batch = self.batch()
        watermark = batch.watermark()
        confirm(batch)
        with self.assertRaises(pmnet.ShardError):
            pmnet.Server("127.0.0.1:0", shard=7, watermark=watermark)
        with self.assertRaises(pmnet.ShardError):
            pmnet.Server("127.0.0.1:0", shard=7, rows=ROWS.items())
        for damaged in (watermark[:-1], watermark[:20] + b"?" + watermark[21:]):
            with self.assertRaises(pmnet.RowsError):
                pmnet.Server("127.0.0.1:0", watermark=damaged)
        fewer = list(ROWS.items())[1:]
        with self.assertRaises(pmnet.RowsError):
            pmnet.Server("127.0.0.1:0", rows=fewer)
        pmnet.Server("127.0.0.1:0", watermark=watermark).close()

    def test_warnings_go_where_they_are_told(self):
        self.client.update(b"one")
        with tempfile.NamedTemporaryFile() as file:
            pmnet.log_to(file.name)
            try:
                batch = self.batch()
                time.sleep(6)
                confirm(batch)
            finally:
                pmnet.log_to("/dev/stderr")
            self.assertIn(b"PM2801", file.read())
        for wrong in (7, b"\0", "/"):
            with self.assertRaises((TypeError, ValueError, OSError)):
                pmnet.log_to(wrong)

    def test_a_batch_after_its_server(self):
        self.client.update(b"one")
        batch = self.batch()
        rows = batch.rows()
        self.server.close()
        self.assertEqual(batch.items[0].payload, b"one")
        for call in (batch.done, batch.rows):
            with self.assertRaises(pmnet.HandleError):
                call()
        del rows


class Calls(unittest.TestCase):
    def test_payloads_of_all_lengths(self):
        with program() as served, client() as one:
            for length in (0, 1, 70_000, LONGEST):
                payload = os.urandom(length)
                self.assertEqual(one.update(payload, key=b"k"), 1)
                self.assertEqual(one.bypass(memoryview(payload)), payload)
            self.assertEqual(one.update(bytearray(b"ba")), 1)
            self.assertEqual(one.bypass(b"", read_only=True), b"")
            self.assertEqual(len(served.updates[-2]), LONGEST)

    def test_many_under_way(self):
        with program(), client(calls_max=64) as one:
            for token in range(64):
                one.update_start(token, b"%d" % token)
            with self.assertRaises(pmnet.FullError):
                one.update_start(64, b"")
            with self.assertRaises(pmnet.PendingError):
                one.read(b"k")
            ended = [one.next() for _ in range(64)]
            self.assertEqual(sorted(event.token for event in ended), list(range(64)))
            self.assertEqual({event.result for event in ended}, {1})
            self.assertIsNone(one.next(0))
            one.update(b"newest", key=b"k")
            reading = one.read(b"k")
            self.assertIn(reading.payload, (b"newest", None))
            self.assertGreater(reading.order, 0)

    def test_deadlines(self):
        with pmnet.Client("127.0.0.1:9", timeout=0.3) as one:
            begun = time.monotonic()
            with self.assertRaises((pmnet.UnknownError, pmnet.FailedError)):
                one.update(b"")
            with self.assertRaises(pmnet.Error):
                one.read(b"k")
            one.bypass_start(7, b"?")
            event = one.next(5)
            self.assertEqual(event.token, 7)
            self.assertIsInstance(event.result, pmnet.Error)
            self.assertLess(time.monotonic() - begun, 10)

    def test_asyncio(self):
        async def calls():
            async with pmnet.AsyncClient(DEVICE, timeout=WAIT) as one:
                updates = [one.update(b"%d" % at, key=b"k") for at in range(2000)]
                asks = [one.bypass(b"%d" % at, read_only=True) for at in range(500)]
                copies, replies = await asyncio.gather(asyncio.gather(*updates), asyncio.gather(*asks))
                self.assertEqual(set(copies), {1})
                self.assertEqual(replies, [b"%d" % at for at in range(500)])
                reading = await one.read(b"k")
                self.assertIn(reading.payload, (b"1999", None))
                with self.assertRaises(TypeError):
                    await one.update(None)
                given_up = asyncio.ensure_future(one.bypass(b"given up"))
                await asyncio.sleep(0)
                given_up.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await given_up
                self.assertEqual(await one.bypass(b"and on"), b"and on")
                # Calls in flight end before the session ends.
                last = asyncio.ensure_future(one.update(b"last"))
                await asyncio.sleep(0)
                return one, last

        async def all_of_it():
            one, last = await calls()
            self.assertEqual(await last, 1)
            await one.close()
            for call in (one.update(b""), one.bypass(b""), one.read()):
                with self.assertRaises(pmnet.HandleError):
                    await call
            foreign = pmnet.AsyncClient(DEVICE, timeout=1)
            await foreign.update(b"here")
            return foreign

        before = threading.active_count()
        with program():
            foreign = asyncio.run(all_of_it())
            with self.assertRaises(pmnet.ThreadError):
                asyncio.run(foreign.update(b"there"))
        self.assertEqual(threading.active_count(), before)

    def test_asyncio_without_a_device(self):
        async def calls():
            async with pmnet.AsyncClient("127.0.0.1:9", timeout=0.5) as one:
                with self.assertRaises((pmnet.UnknownError, pmnet.FailedError)):
                    await one.update(b"")
                with self.assertRaises(pmnet.Error):
                    await one.read(b"k")
            with self.assertRaises(ZeroDivisionError):
                async with pmnet.AsyncClient("127.0.0.1:9", timeout=0.5):
                    raise ZeroDivisionError

        asyncio.run(calls())

    def test_a_cancelled_close_leaves_no_call_behind(self):
        async def calls():
            one = pmnet.AsyncClient("127.0.0.1:9", timeout=WAIT)
            waiting = [asyncio.ensure_future(one.update(b"")) for _ in range(5)]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(one.close())
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(one.close(), 0.1)
            ended, left = await asyncio.wait([*waiting, closing], timeout=10)
            self.assertFalse(left)
            self.assertIsNone(closing.result())
            for call in waiting:
                self.assertIsInstance(call.exception(), pmnet.UnknownError)

        asyncio.run(calls())

    def test_an_error_that_is_raised_again_does_not_grow(self):
        async def calls():
            one = pmnet.AsyncClient("127.0.0.1:9", timeout=WAIT)
            waiting = [asyncio.ensure_future(one.update(b"")) for _ in range(100)]
            await asyncio.sleep(0)
            one._end(pmnet.ClosedError("the session is closed"))
            waiting += [asyncio.ensure_future(one.update(b"")) for _ in range(100)]
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            self.assertEqual({type(error) for error in errors}, {pmnet.ClosedError})
            self.assertEqual(len({id(error) for error in errors}), len(errors))
            lengths = {len(traceback.extract_tb(error.__traceback__)) for error in errors}
            self.assertLess(max(lengths), 10)
            await one.close()

        asyncio.run(calls())

    def test_close_says_what_is_lost(self):
        async def calls():
            for error, is_told in (
                (pmnet.DataLossError("updates 1 to 2"), True),
                (pmnet.CopiesError("1 copy"), True),
                (pmnet.ClosedError("the session is closed"), False),
            ):
                one = pmnet.AsyncClient("127.0.0.1:9", timeout=WAIT)
                one._own_loop()
                one._end(error)
                if is_told:
                    with self.assertRaises(type(error)):
                        await one.close()
                await one.close()

        asyncio.run(calls())

    def test_a_package_that_is_imported_anew_has_its_own_classes(self):
        with self.assertRaises(pmnet.ArgumentError):
            pmnet.Client("")
        old = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "pmnet"}
        try:
            again = importlib.import_module("pmnet")
            self.assertIsNot(again.Error, pmnet.Error)
            with self.assertRaises(again.ArgumentError):
                again.Client("")
        finally:
            sys.modules.update(old)

    def test_one_interpreter_of_a_process(self):
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            self.skipTest("this Python has no module that makes interpreters")
        other = interpreters.create()
        try:
            path = f"import sys; sys.path[:0] = {sys.path!r}\n"
            with self.assertRaisesRegex(Exception, "another interpreter|subinterpreters"):
                interpreters.run_string(other, path + "import pmnet")
        finally:
            interpreters.destroy(other)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
