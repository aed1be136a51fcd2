"""What programs written for 0.1 and for other packages import or pass, under the names they know."""
