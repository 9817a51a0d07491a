"""What a team may hold."""
