"""Commands of ``airflow epochs`` by subject, and what they share. ``cli`` lists them."""
