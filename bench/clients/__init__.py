"""Client libraries side by side: those of NSQ on the same nsqd, and those of other queues on their own servers.

    quota            when a run is over, and what was done by then
    job              what a library is to do, and in which way
    asyncio_load     what the drivers of libraries on asyncio have in common
    emberq_driver    }
    pynsq_driver     }  one for each library: connects, and does a job
    gnsq_driver      }
    ansq_driver      }
    nats_driver      }
    redis_driver     }  the same for queues that are not NSQ
    rabbitmq_driver  }
    plan             a job and who does it, as a value that is sent to a worker process
    work             the table of works on one nsqd
    queue_server     servers of other queues, started for a run
    queue_work       the table of works in which queues are compared, each with its own server
    contest          rounds by turns, and how many times the best of the others ours is

What makes it fair among the clients of NSQ (`queue_work` has its own rules):

- One nsqd (ours, or the one that was named), one connection, messages of the same size, and the same number of them in
  flight or unconfirmed, for everybody.
- Each library is used in the fastest way that it documents. None of the others has batches, so in the row of batches
  they do what they do best: pynsq and gnsq call a plain function for each message, ansq is iterated over.
- The libraries on asyncio (emberq, ansq, and pynsq by way of tornado) all run on uvloop; gnsq runs on gevent.
- A run ends after a fixed time, so that the slow do not decide how long the fast are watched.
- The CPU that the client spends on a message is reported beside the rate: the rate of a fast client is bounded by nsqd,
  which has the other core, its CPU is not.

A driver imports its library when it is asked for it, in the worker process. None but `emberq_driver` knows emberq.
"""
