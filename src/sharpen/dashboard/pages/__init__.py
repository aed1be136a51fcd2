"""The pages, one file each. A page module has `ROUTES`; routes of a module that stands earlier win."""

MODULES = (
    "runs",
    "events",
    "curves",
    "run",
    "compare",
    "workers",
    "log",
    "exports",
    "actions",
    "rollouts",
    "group",
    "rollout",
    "resources",
    "prompts",
    "episodes",
)
