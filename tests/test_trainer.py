"Every family of classifier is read layer by layer, and DescentTrainer on two processes is DescentTrainer on one."
import os
import subprocess
import sys

import pytest
import torch
import transformers
from conftest import ROOT
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

from layerdescent.config import UserError
from layerdescent.descent import sample_losses
from layerdescent.readout import LayerReadout, collected

SMALL = dict(vocab_size=60, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, num_labels=3, pad_token_id=0, max_position_embeddings=40)
DECODER = dict(num_key_value_heads=1)
FAMILIES = {
    'bert': {}, 'roberta': {}, 'electra': dict(embedding_size=8), 'mpnet': {}, 'albert': dict(embedding_size=8), 'deberta-v2': dict(relative_attention=True, pos_att_type=['p2c', 'c2p']),
    'distilbert': dict(dim=16, n_layers=3, n_heads=2, hidden_dim=32), 'modernbert': dict(classifier_pooling='mean'), 'gpt2': {}, 'llama': DECODER, 'qwen2': DECODER,
    'vit': dict(image_size=8, patch_size=4),
}
DECODERS = ('gpt2', 'llama', 'qwen2')


def build(family, seed=0):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **SMALL | FAMILIES[family])
    model = AutoModelForImageClassification if family == 'vit' else AutoModelForSequenceClassification
    return model.from_config(config, attn_implementation='eager').eval()


def inputs_of(family, left=False):
    torch.manual_seed(1)
    if family == 'vit': return dict(pixel_values=torch.randn(4, 3, 8, 8))
    ids, mask = torch.randint(5, 60, (4, 9)), torch.ones(4, 9, dtype=torch.long)
    mask[1, 6:] = 0
    mask[3, 2:] = 0
    if left: mask = mask.flip(1)
    ids[mask == 0] = 0
    return dict(input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize('family, left', [(f, False) for f in FAMILIES] + [(f, True) for f in DECODERS])
def test_every_layer_is_read_and_the_last_is_the_stock_model(family, left):
    model, inputs = build(family), inputs_of(family, left)
    reader = LayerReadout(model)
    with torch.no_grad():
        logits, stock = reader(**inputs), model(**inputs).logits
        with collected(reader.stack, lambda s: s) as states: model(**inputs)
        read = reader.read(states[-1], inputs)
    assert reader.depth == 3 and logits.shape == (4, 4, 3)
    assert (logits[-1] - stock).abs().max() <= 1e-5 and (read - stock).abs().max() <= 1e-5
    assert min((a - b).abs().max() for a, b in zip(logits[1:], logits)) > 1e-7      # layers differ


@pytest.mark.parametrize('family', FAMILIES)
def test_a_layers_loss_moves_what_is_below_it_and_nothing_above(family):
    model = build(family)
    reader = LayerReadout(model)
    sample_losses(reader(**inputs_of(family)), torch.tensor([0, 1, 2, 0]))[1].mean().backward()
    moved = [sum(p.grad.abs().sum().item() for p in layer.parameters() if p.grad is not None) for layer in reader.stack]
    head = [p.grad for n, p in model.named_parameters() if n.split('.')[0] in ('score', 'classifier')]
    assert moved[0] > 0 and sum(moved[1:]) == 0 and any(g is not None and g.abs().sum() > 0 for g in head)


@pytest.mark.parametrize('family', FAMILIES)
def test_what_was_read_saves_and_loads_in_plain_transformers(family, tmp_path):
    model, inputs = build(family), inputs_of(family)
    with torch.no_grad(): before = LayerReadout(model)(**inputs)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation='eager').eval()
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)
        assert torch.equal(LayerReadout(again)(**inputs), before)


def test_a_model_without_a_stack_says_how_to_name_it():
    class Flat(transformers.BertPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.bert = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match='name the nn.ModuleList'): LayerReadout(Flat(build('bert').config))
    with pytest.raises(UserError, match='has no list of layers'): LayerReadout(build('bert'), layers='encoder.blocks')


SCRIPT = '''
import sys, json, torch
from torch.utils.data import Dataset
from transformers import RobertaConfig, RobertaForSequenceClassification, TrainingArguments
from layerdescent.perturb import GaussianNoise
from layerdescent.trainer import DescentTrainer
class Toy(Dataset):
    ids = torch.randint(5, 50, (40, 8), generator=torch.Generator().manual_seed(0))
    def __len__(self): return 40
    def __getitem__(self, i): return dict(input_ids=self.ids[i], attention_mask=torch.ones_like(self.ids[i]), labels=(self.ids[i, 0] > 25).long())
torch.manual_seed(0)
model = RobertaForSequenceClassification(RobertaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=40, pad_token_id=0, hidden_dropout_prob=0., attention_probs_dropout_prob=0.))
folder, batch, pieces = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
args = TrainingArguments(output_dir=folder, max_steps=4, per_device_train_batch_size=batch, gradient_accumulation_steps=pieces, learning_rate=1e-3, logging_steps=1, save_strategy='no', report_to=[], use_cpu=True, disable_tqdm=True, seed=3)
trainer = DescentTrainer(model=model, args=args, train_dataset=Toy(), eval_dataset=Toy(), objective=dict(kind='constrained', alpha=.1, eta_dual=1.), perturbation=GaussianNoise(.1))
trainer.train()
seen = trainer.evaluate()
result = dict(f=[[r[f'f_{l}'] for l in range(3)] for r in trainer.state.log_history if 'loss' in r], multipliers=trainer.objective.multipliers().tolist(), evaluated=[seen[f'eval_f_{l}'] for l in range(3)],
              weights=[p.detach().double().sum().item() for p in model.parameters()])
json.dump(result, open(f'{folder}/{args.process_index}.json', 'w'))
'''


def test_two_processes_are_one_with_the_joint_batch(tmp_path):
    import json
    (tmp_path/'job.py').write_text(SCRIPT)
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1')
    results = {}
    for name, processes, batch, pieces in (('one', 1, 8, 1), ('two', 2, 4, 1), ('four', 2, 2, 2)):
        (tmp_path/name).mkdir()
        launch = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', str(processes)] if processes > 1 else [sys.executable]
        done = subprocess.run([*launch, str(tmp_path/'job.py'), str(tmp_path/name), str(batch), str(pieces)], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        results[name] = [json.loads((tmp_path/name/f'{rank}.json').read_text()) for rank in range(processes)]
    one = results['one'][0]
    assert max(one['multipliers']) > 0
    for two in (*results['two'], *results['four']):
        for key in one: assert torch.allclose(torch.tensor(two[key]), torch.tensor(one[key]), atol=2e-5), (key, two[key], one[key])
