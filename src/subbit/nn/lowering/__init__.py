"""Lowering: a PyTorch model as the operations of a packed network.

`tracing` reads the model with torch.fx, `lower` hands every node to the handler of its operation (`weighted`,
`pointwise`, `spatial`, `movement`), and `simplify` folds BatchNorm and whatever else need not be an operation.
"""
