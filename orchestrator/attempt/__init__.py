"""The supervisor: the batch process of an attempt, from taking the run to its end record. Standard library only.

    __main__     entry (supervisor and notice step)
    take         spec, epoch, start record        witness    what the gate is asked with, and asking it
    fence        ends what older starts left      setup      device, env_file, the environment of job.sh
    launch       job.sh and the notice step       watch      the loop: heart, memory, signals, notice, end
    cause        why the notice came (pure)       target     whom it goes to (pure)      deliver   sending it
    ending       the end record                   papers     writing into the attempt's folder
    steps        srun's tasks on a host           trainer    reading trainer.jsonl and trainers/
    processes    /proc, pidfd, subreaper          commands   bounded Slurm commands      memory    cgroup, GPU
    notice       one task of the notice step      listen     signals as bytes in a pipe      supervise  the steps in order
    life         is the trainer alive (limit learnt)  hung      stacks, TERM, KILL
    steady       a clock for waits that nobody can set
"""
