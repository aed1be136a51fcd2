"""Chat requests and answers as data: one reader and writer for OpenAI's and Anthropic's APIs.

reading     a request body, a response body or a stream as one ParsedRequest or ParsedResponse
messages    messages, their parts and tool calls; in the form of OpenAI's chat API
openai      bodies of chat, completions, responses and embeddings
anthropic   bodies of messages
streams     server-sent events: splitting, joining them into one response, writing a response as events
attributes  the attributes of a span (gen_ai.*, sharpen.*): written from a call, read back as messages
wire        JSON as networks send it: half characters, loose types, fields with keys, errors of servers
"""
