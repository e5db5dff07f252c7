from farandole.torch.elastic import *  # noqa: F403
