"""Which specs each setting of run.py is trained with: the systems as they come, and what the runs have shown to be better."""

AS_THEY_COME = [
    "dense", "half", "casq:bits=4", "casq", "casq:topology=all_gather", "power_sgd:rank=16", "power_sgd:rank=4", "qsgd:bits=4",
    "top_k:ratio=0.05+zen", "top_k:ratio=0.01+zen", "sketched_sgd", "ef_signsgd", "marsit:full_every=100",
]

RECIPES = {
    "transformer-kjv": AS_THEY_COME,
    "transformer-wikitext2": AS_THEY_COME,
    "transformer-kjv-momentum": AS_THEY_COME,
    "cnn-fashion": AS_THEY_COME,
    "resnet20-cifar10": AS_THEY_COME,
    "lstm-kjv": ["dense", "rows=zen,dense=half", "rows=zen,dense=casq:bits=4", "rows=zen,dense=power_sgd:rank=16", "rows=zen,dense=casq"],
}
