# Answers to lab 4.

# %% name="advantages"
def advantages(rewards: torch.Tensor) -> torch.Tensor:
    centred = rewards - rewards.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt()
    return torch.where(deviation > 1e-6, centred / deviation.clamp(min=1e-6), 0.0)


# %% name="loss"
def grpo_loss(new, old, reference, advantages, mask, eps: float, beta: float) -> torch.Tensor:
    ratio = (new - old).exp()
    a = advantages[:, None]
    surrogate = torch.minimum(ratio * a, ratio.clamp(1 - eps, 1 + eps) * a)
    kl = (reference - new).exp() - (reference - new) - 1
    loss = torch.where(mask, beta * kl - surrogate, 0.0)
    return (loss.sum(1) / mask.sum(1)).mean()


# %% name="answers"
share = 1 - 0.9**8 - 0.1**8
value = 0
moved_by = "gradient"

# %% name="training"
rewards_by_step = []
for step in range(1, STEPS + 1):
    batch, solved = episodes(step)
    rewards_by_step.append(solved.mean().item())
    of_episodes = advantages(solved.view(PROMPTS, GROUP)).view(-1)
    with torch.no_grad():
        reference = next_token_logprobs(reference_model, batch.tokens)
    loss = grpo_loss(next_token_logprobs(model, batch.tokens), batch.sampled, reference, of_episodes, batch.policy, eps=0.2, beta=0.001)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
