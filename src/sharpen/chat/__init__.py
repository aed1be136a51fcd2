"""Chat requests and answers as data: one reader of OpenAI's and Anthropic's APIs.

messages    messages, their parts and tool calls; in the form of OpenAI's chat API, and in the attributes of a span
openai      bodies of chat, completions, responses and embeddings
anthropic   bodies of messages
streams     a request, a response or a stream of any API as one ParsedRequest or ParsedResponse; server-sent events
wire        JSON as networks send it: half characters, loose types, fields with keys, errors of servers
"""
