"""The teacher's part of the loss: a reverse KL on the student's tokens, or the teacher's answers as targets. Pure.

On-policy distillation. The student pi sampled y in its own states; q is the teacher's probability of the same tokens.
Per token, the reverse KL's gradient is that of a policy gradient whose advantage is the log-ratio, without gradient:

    grad KL(pi || q) = -E_{y ~ pi} [ (log q(y_t) - log pi(y_t)) grad log pi(y_t) ]
    A_t = A + coef (log q(y_t) - log pi_old(y_t))

A is the step's own advantage, 0 in a group without a success. A token's effect on the rewards of later tokens is left
out (a discount of 0). Ratio, clip, corrections and selections apply to A_t as to any advantage.

Sources: Agarwal et al., "On-Policy Distillation of Language Models" (GKD, arXiv 2306.13649); Gu et al., "MiniLLM"
(arXiv 2306.08543); Lu and Thinking Machines Lab, "On-Policy Distillation" (2025), whose advantage this is; prime-rl's
`teacher_tau`, which is `coef`.

DAgger (Ross, Gordon and Bagnell, arXiv 1011.0686): the oracle's answer in each state that the student came to is a
target of the cross-entropy, `losses.nll_loss`; the states are the student's, so that it learns to leave its own errors.
"""

from __future__ import annotations

from torch import Tensor

from dart_train.trainer.losses.ratios import LOG_RATIO_LIMIT, log_ratio


def taught_advantages(
    advantages: Tensor, old_logprobs: Tensor, teacher_logprobs: Tensor, known: Tensor, coef: float
) -> Tensor:
    """Add a teacher's word on each token to the advantages; see the module's formula.

    Args:
        advantages: (S,) of the steps.
        old_logprobs: (S, T) log pi_old, without gradient.
        teacher_logprobs: (S, T) log q, anything where unknown.
        known: (S, T) True on response tokens that the teacher judged.
        coef: weight of the reverse KL.

    Returns:
        (S, T) advantages of tokens, or the (S,) given ones where the teacher judged none.
    """
    if not coef or not bool(known.any()):
        return advantages
    gap = log_ratio(teacher_logprobs, old_logprobs.detach(), known).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return advantages[:, None] + coef * gap.masked_fill(~known, 0.0)
