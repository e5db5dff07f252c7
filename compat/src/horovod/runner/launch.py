from farandole.compat.horovodrun import check_build, parse_args, run_commandline

__all__ = ["check_build", "parse_args", "run_commandline"]

if __name__ == "__main__":  # python -m horovod.runner.launch -np 2 python train.py
    run_commandline()
