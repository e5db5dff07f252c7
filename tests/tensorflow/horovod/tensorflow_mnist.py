# A program as users of Horovod wrote it for TensorFlow 1: graph, session, hook.
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

tf = tf.compat.v1
tf.disable_eager_execution()


def main(_):
    hvd.init()
    random = np.random.default_rng(hvd.rank())
    x = tf.placeholder(tf.float32, [None, 6], name="x")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    with tf.variable_scope("layer"):
        weights = tf.get_variable(
            "weights", [6, 1], initializer=tf.random_normal_initializer(seed=hvd.rank())
        )
    loss = tf.losses.mean_squared_error(y, tf.matmul(x, weights))
    opt = tf.train.AdamOptimizer(0.02 * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=300 // hvd.size()),
        tf.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=100),
    ]
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    value = None
    with tf.train.MonitoredTrainingSession(hooks=hooks, config=config) as mon_sess:
        while not mon_sess.should_stop():
            batch = random.normal(size=(32, 6))
            target = batch.sum(axis=1, keepdims=True)
            _, value, found = mon_sess.run(
                [train_op, loss, weights], feed_dict={x: batch, y: target}
            )
    everyone = hvd.allgather_object(found.tolist())
    print(f"rank {hvd.rank()} loss {value:.4f} same {everyone[0] == everyone[1]}")


if __name__ == "__main__":
    tf.app.run()
