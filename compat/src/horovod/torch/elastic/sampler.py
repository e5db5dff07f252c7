from farandole.data import ElasticSampler

__all__ = ["ElasticSampler"]
