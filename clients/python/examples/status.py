"""What a server is, and how full:  python status.py [address] [address of Admin]"""
import sys

from quire_client import Client

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
admin_address = sys.argv[2] if len(sys.argv) > 2 else None

with Client(address, admin_address=admin_address, timeout=10) as client:
    info, blocks = client.admin.server_info(), client.admin.block_stats()
    print(f"{info.served_model_name} on quire {info.version}, up to {info.max_model_len} tokens")
    print(f"{blocks.used_blocks} blocks used, {blocks.cached_blocks} cached of {blocks.total_blocks}")
    for request in client.admin.requests():
        print(f"{request.request_id}: {request.age_ms / 1e3:.1f} s")
