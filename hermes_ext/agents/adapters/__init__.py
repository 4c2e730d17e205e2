"""This memory behind the interfaces of agent frameworks, one module each; docs/adapters.md.

    records         a record for each item of a framework, found again by its key
    langgraph       HermesStore: a BaseStore
    langchain       HermesRetriever: a BaseRetriever
    openai_agents   HermesSession: a Session
    llama_index     HermesMemoryBlock: a BaseMemoryBlock

The frameworks come with the extra `adapters`; each module imports its own one.
"""
