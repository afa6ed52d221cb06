"""What an operator needs: health, metrics, audit, backup, repair, export."""
