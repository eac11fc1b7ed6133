"""The paper's method, `method=paper` (arXiv 2509.09438).

In the order in which to read it:

    probe.py        scores of the responses, by probes that have not seen them (section 3.2.2)
    targets.py      a target for every response: the accuracy of its bin (section 3.2.2)
    examples.py     prompt, response and `<CNF>`; the order of the examples
    loss.py         (t - c)^2 + gamma * SFT, and how the ablations differ (eq. 7)
    lora.py         what trains: LoRA and the row of `<CNF>`, and where that row starts
    loop.py         the steps: forward, backward, log, validate, checkpoint
    trainer.py      checks before, the adapter that is written after
    checkpoints.py  what makes a killed training go on

c is read in `grace.cnf`, in training as while answering. `grace.pipeline.stages.paper` hands a
run's answers to this folder, `grace.config.PaperSettings` has its settings.
"""
