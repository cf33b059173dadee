"""Who does what, when. Nothing here touches an array."""
