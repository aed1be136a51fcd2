#!/bin/sh
# An agent in sh: it reads a date from a text with a model. Needs curl and awk.
#
#     sh examples/command_agent/date_reader.sh        # run by examples/command_agent.py, once for every rollout
#
# The task is {"text": …, "date": …}. The reward is 1 for exactly the date, a half where it stands among other words.
set -eu

field() { # the text of a key in JSON
    printf '%s' "$2" | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"
}
quoted() { # a text as JSON has it
    printf '%s' "$1" | awk '{ gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }'
}
filled() { # the prompt with the text in its place
    text=$1 awk 'BEGIN { p = ENVIRON["SHARPEN_PROMPT"]; i = index(p, "{text}")
                         printf "%s%s%s", substr(p, 1, i - 1), ENVIRON["text"], substr(p, i + 6) }'
}

prompt=$(filled "$(field text "$SHARPEN_TASK")")
said=$(curl -sSf "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer ${OPENAI_API_KEY:-none}" -H "Content-Type: application/json" \
    -d "{\"model\": \"$SHARPEN_MODEL\", \"messages\": [{\"role\": \"user\", \"content\": \"$(quoted "$prompt")\"}]}")
answer=$(field content "$said")
date=$(field date "$SHARPEN_TASK")

echo "the model said: $answer"
case "$answer" in
    "$date") echo "reward: 1" ;;
    *"$date"*) echo "reward: 0.5" ;;
    *) echo "reward: 0" ;;
esac
