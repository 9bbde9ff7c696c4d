"""A small U-Net for masks of small pictures, as a control."""

import copy

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate, pad

CHANNELS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = (16, 32, 64), 16, 1e-2, 1e-2
# Pixels by which pictures are shifted at most while learning.
SHIFT = 3


def block(inputs, outputs):
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class SmallUNet(nn.Module):
    """Three scales, 118,000 parameters: pictures of shape ``(N, 3, H, W)`` to log-odds, shape ``(N, H, W)``."""

    def __init__(self):
        super().__init__()
        fine, middle, coarse = CHANNELS
        self.down = nn.ModuleList([block(3, fine), block(fine, middle), block(middle, coarse)])
        self.up = nn.ModuleList([block(coarse + middle, middle), block(middle + fine, fine)])
        self.last = nn.Conv2d(fine, 1, 1)

    def forward(self, pictures):
        seen = [self.down[0](pictures)]
        for each in self.down[1:]:
            seen.append(each(nn.functional.max_pool2d(seen[-1], 2)))
        found = seen.pop()
        for each in self.up:
            finer = seen.pop()
            found = each(torch.cat([interpolate(found, finer.shape[-2:]), finer], 1))
        return self.last(found).squeeze(1)


def varied(pictures, masks):
    """Mirrored and shifted copies; what comes in at the border repeats the border, and is background."""
    flip = torch.rand(len(pictures)) < 0.5
    both = torch.cat([pictures, masks.unsqueeze(1)], 1)
    both = torch.where(flip[:, None, None, None], both.flip(-1), both)
    height, width = masks.shape[-2:]
    shown = pad(both, (SHIFT,) * 4, mode="replicate")
    rows, columns = torch.randint(2 * SHIFT + 1, (2, len(pictures))).tolist()
    cut = [x[:, r : r + height, c : c + width] for x, r, c in zip(shown, rows, columns, strict=True)]
    cut = torch.stack(cut)
    return cut[:, :3], cut[:, 3]


def fit_unet(images, masks, held_out, score, epochs, seed):
    """The network that scored best on the held-out pictures after some pass, as a function of pictures.

    ``images`` are uint8, shape ``(N, H, W, 3)``; ``held_out`` is a pair of images and masks; ``score`` takes log-odds
    and masks.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = SmallUNet()
        pictures, targets = _pictures(images), torch.from_numpy(masks).float()
        optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        steps = epochs * -(-len(pictures) // BATCH_SIZE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps)
        best, state = -1.0, None
        for _ in range(epochs):
            network.train()
            for batch in torch.randperm(len(pictures)).split(BATCH_SIZE):
                shown, wanted = varied(pictures[batch], targets[batch])
                optimizer.zero_grad()
                binary_cross_entropy_with_logits(network(shown), wanted).backward()
                optimizer.step()
                schedule.step()
            found = score(_odds(network, held_out[0]), held_out[1])
            if found > best:
                best, state = found, copy.deepcopy(network.state_dict())
    network.load_state_dict(state)
    return lambda images: _odds(network, images)


def _pictures(images):
    return torch.from_numpy(images).movedim(-1, 1).float() / 127.5 - 1


@torch.no_grad()
def _odds(network, images):
    network.eval()
    return network(_pictures(images)).numpy()
