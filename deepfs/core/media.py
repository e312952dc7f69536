"""Stopgap until the real module is here."""
_T={".png":"image/png",".jpg":"image/jpeg",".pdf":"application/pdf",".svg":"image/svg+xml"}
def mime_type(path):
    import os
    return _T.get(os.path.splitext(path)[1].lower())
def is_binary_name(path):
    m=mime_type(path); return m is not None and m!="image/svg+xml"
def sniff(data): return "application/octet-stream"
