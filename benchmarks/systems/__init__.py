"""What other systems would choose on the same jobs, timed by the same simulator."""
