"What a notebook cannot show of fetching: killed, interrupted and concurrent processes, a full disk, a fresh interpreter; and the registry against real files, where they are on disk."
import hashlib
import http.server
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import asdict, replace

import pytest
from conftest import ROOT, environment

from layerdescent.sources import SOURCES, Source, check_files

CONTENT = hashlib.shake_128(b'content').digest(600_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PROGRAM = '''
import json, sys
from layerdescent.config import UserError
from layerdescent.sources import Source, fetch
given, destination, partial = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
try: fetch(Source(**given), destination, partial=partial)
except UserError as e: sys.exit(f'error: {e}')
'''


class Stalling(http.server.BaseHTTPRequestHandler):
    "Serves `server.content` with ranges; while `server.stall` is set it stops after 200,000 bytes and keeps the connection open."
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args): pass

    def do_HEAD(self): self.do_GET(body=False)

    def do_GET(self, body=True):
        content = self.server.content
        start = int(re.fullmatch(r'bytes=(\d+)-', self.headers.get('Range', 'bytes=0-'))[1])
        self.server.starts.append(start)
        self.send_response(206 if start else 200)
        for name, value in [('Content-Length', len(content) - start), ('ETag', f'"{hashlib.sha256(content).hexdigest()}"'), ('X-Repo-Commit', 'a' * 40), ('Content-Range', f'bytes {start}-{len(content) - 1}/{len(content)}')]:
            self.send_header(name, str(value))
        self.end_headers()
        if not body: return
        self.wfile.write(content[start:start + 200_000] if self.server.stall.is_set() else content[start:])
        self.wfile.flush()
        while self.server.stall.is_set(): time.sleep(.02)


@pytest.fixture
def server():
    s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Stalling)
    s.daemon_threads, s.content, s.stall, s.starts, s.url = True, CONTENT, threading.Event(), [], f'http://127.0.0.1:{s.server_port}'
    threading.Thread(target=s.serve_forever, kwargs=dict(poll_interval=.02), daemon=True).start()
    yield s
    s.stall.clear(); s.shutdown(); s.server_close()


def remote(server) -> Source:
    return Source('set', 'url', f'{server.url}/set.bin', '1', {'set.bin': DIGEST}, 'none', 'nobody', .6, archive_sha256=DIGEST)


def start(source, folder, before=None, **more):
    env = environment(ROOT) | dict(no_proxy='127.0.0.1', HF_HUB_OFFLINE='0', HF_HOME=str(folder/'hf')) | more
    words = [sys.executable, '-c', PROGRAM, json.dumps(asdict(source)), str(folder/'out'/'set'), str(folder/'partial')]
    return subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=before)


def wait(condition, what):
    end = time.time() + 20
    while not condition():
        assert time.time() < end, f'waited for {what}'
        time.sleep(.02)


def part(folder): return folder/'partial'/'set'/'set.bin.part'


def stalled(server, folder):
    "A fetch that has received 200,000 bytes and waits for more."
    server.stall.set()
    process = start(remote(server), folder)
    wait(lambda: part(folder).exists() and part(folder).stat().st_size == 200_000, 'the first 200,000 bytes')
    return process


def test_a_killed_fetch_leaves_no_destination_and_the_next_one_continues_it(server, tmp_path):
    first = stalled(server, tmp_path)
    second = start(remote(server), tmp_path)
    assert second.wait(20) == 1
    assert f'is being fetched by process {first.pid}' in second.stderr.read()   # one at a time
    os.kill(first.pid, signal.SIGKILL); first.wait()
    assert not (tmp_path/'out'/'set').exists() and list((tmp_path/'out').glob('.set.*.fetching'))
    server.stall.clear()
    third = start(remote(server), tmp_path)
    assert third.wait(20) == 0, third.stderr.read()
    assert server.starts == [0, 200_000]
    assert [p.name for p in (tmp_path/'out').rglob('*')] == ['set', 'set.bin']   # the killed one's folder is gone as well
    assert hashlib.sha256((tmp_path/'out/set/set.bin').read_bytes()).hexdigest() == DIGEST and not (tmp_path/'partial'/'set').exists()


def test_an_interrupted_fetch_cleans_up_and_keeps_the_partial_file(server, tmp_path):
    process = stalled(server, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert not list((tmp_path/'out').iterdir()) and part(tmp_path).stat().st_size == 200_000


def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing(server, tmp_path):
    import resource
    process = start(remote(server), tmp_path, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000)))
    assert process.wait(20) == 1
    said = process.stderr.read()
    assert said.startswith('error: set: the disk (or the quota) is full') and len(said.strip().splitlines()) == 1
    assert not list((tmp_path/'out').iterdir())


def test_a_fresh_interpreter_fetches_from_a_hub(server, tmp_path):
    source = Source('set', 'hub', 'owner/name', 'a' * 40, {'model.bin': DIGEST}, 'none', 'nobody', .6)
    process = start(source, tmp_path, HF_ENDPOINT=server.url)
    assert process.wait(30) == 0, process.stderr.read()
    assert [p.name for p in (tmp_path/'out').rglob('*')] == ['set', 'model.bin']
    process = start(source, tmp_path/'offline', HF_ENDPOINT=server.url, HF_HUB_OFFLINE='1')
    assert process.wait(30) == 1 and 'LAYERDESCENT_MIRROR' in process.stderr.read()


def test_importing_sources_loads_no_torch_and_no_hub():
    done = subprocess.run([sys.executable, '-c', "import sys, layerdescent.sources; print({'torch', 'huggingface_hub', 'transformers', 'pandas'} & set(sys.modules))"], env=environment(ROOT), capture_output=True, text=True)
    assert done.stdout == 'set()\n', done.stderr


@pytest.mark.parametrize('name', [n for n, s in SOURCES.items() if s.kind != 'generated'])
def test_the_registry_describes_what_is_under_data(name):
    folder = ROOT/'data'/name
    if not folder.is_dir(): pytest.skip(f'data/{name} is not here')
    check_files(SOURCES[name], folder)
    there = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob('*') if p.is_file()}
    if SOURCES[name].members: return   # sizes of these are estimates; the folder's own note was checked
    assert set(there) == {SOURCES[name].placed(p) for p in SOURCES[name].files}
    assert abs(sum(there.values()) / 1e6 - SOURCES[name].megabytes) < .06


def test_an_archive_pinned_as_a_whole_resumes_after_a_kill_and_is_checked(server, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w:gz') as t:
        for name in ('set/Train/001.tif', 'set/Train/._001.tif', 'set/.DS_Store'):
            info = tarfile.TarInfo(name)
            info.size = 200_000
            t.addfile(info, io.BytesIO(os.urandom(200_000)))
    server.content = buffer.getvalue()
    source = Source('set', 'url', f'{server.url}/set.tar.gz', '1', {}, 'none', 'nobody', .6, archive_sha256=hashlib.sha256(server.content).hexdigest(), strip=('set/',), members=r'set/Train/\d+\.tif')
    server.stall.set()
    first, partial = start(source, tmp_path), tmp_path/'partial'/'set'/'set.tar.gz.part'
    wait(lambda: partial.exists() and partial.stat().st_size == 200_000, 'the first 200,000 bytes')
    os.kill(first.pid, signal.SIGKILL); first.wait()
    assert not (tmp_path/'out'/'set').exists()
    server.stall.clear()
    second = start(source, tmp_path)
    assert second.wait(20) == 0, second.stderr.read()
    assert server.starts == [0, 200_000]
    assert {p.relative_to(tmp_path/'out'/'set').as_posix() for p in (tmp_path/'out'/'set').rglob('*') if p.is_file()} == {'Train/001.tif', 'FILES.json'}
    third = start(replace(source, archive_sha256='0' * 64), tmp_path/'other')
    assert third.wait(20) == 1 and 'checksum mismatch' in third.stderr.read() and not list((tmp_path/'other'/'out').iterdir())
