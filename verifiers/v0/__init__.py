"""Forms of older releases: call forms, accessors and names that no code of this library uses.

Current classes have one entry to this folder: `OlderForms` (environments), `OlderAccessors` (rubrics). Read
`call_forms` first; `processed_outputs` serves trainers of 0.1.7, `unknown_arguments` constructors, and `utilities` the
paths below `verifiers.utils`.
"""
