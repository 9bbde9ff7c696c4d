"""The peer that people write by hand: a chain of ``logaddexp`` over the variables, differentiated by autograd.

It is the "Chain" of Tarlow et al. (2012), Section 6.1, equivalent to Barlow and Heidtmann (1984), in log space: O(D^2)
time and, because autograd keeps every step, O(D^2) memory.
"""

import torch


def growing_chain(logits, count_logits):
    """The fastest form: the message of step d has d + 1 entries."""
    message = torch.zeros_like(logits[..., :1])
    for logit in logits.unsqueeze(-1).unbind(-2):
        on = message + logit
        middle = torch.logaddexp(message[..., 1:], on[..., :-1])
        message = torch.cat([message[..., :1], middle, on[..., -1:]], -1)
    return torch.logsumexp(message + count_logits, -1)


def plain_chain(logits, count_logits):
    """The shortest form: D + 1 entries at every step, as implementations with a fixed k have k + 1."""
    # Finite, because logaddexp(-inf, -inf) has NaN derivatives.
    message = torch.full_like(count_logits, -1e300)
    message[..., 0] = 0.0
    for logit in logits.unsqueeze(-1).unbind(-2):
        message = torch.cat([message[..., :1], torch.logaddexp(message[..., 1:], message[..., :-1] + logit)], -1)
    return torch.logsumexp(message + count_logits, -1)


def log_partition_and_marginals(chain, logits, count_logits):
    """Runs a chain forward and backward."""
    logits = logits.clone().requires_grad_()
    log_partition = chain(logits, count_logits)
    (marginals,) = torch.autograd.grad(log_partition.sum(), logits)
    return log_partition.detach(), marginals
