"""The pages, one file each. A page module has `ROUTES`; the routes of an earlier module take precedence."""

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
